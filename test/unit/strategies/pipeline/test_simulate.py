"""Times, idle shares and memory against closed forms and by hand; the timeline as text."""

import math
from itertools import pairwise

import pytest
from staged_steps import MESH, NUMBER, ROW, SMALL, WEIGHT, Builder, chain, orders, random_step

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instructions import Fetch, Layout, Run, Task
from rhino.ir.plan.step_memory import live_slots, local_bytes, memory_of
from rhino.ir.plan.timeline import Span, Timeline, render
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.placed_values import RECEIVE_AHEAD
from rhino.strategies.pipeline.schedules import Pipeline, make_order
from rhino.strategies.pipeline.simulate import Costs, Link, equal_links, simulate

UNITS = {"setup": 0.0, "apply": 0.0, "forward": 1.0, "backward": 2.0, "input-gradient": 1.0, "weight-gradient": 1.0}
AT_ONCE = Link(0.0, math.inf)
SHAPES = [(1, 1), (2, 2), (2, 5), (3, 3), (4, 2), (4, 4), (4, 9), (6, 8)]


def costs_of(staged, link=AT_ONCE, **times):
    seconds = dict.fromkeys(range(len(staged.programs)), 0.0)
    for part in staged.parts:
        seconds[part.program] = times.get(part.phase.replace("-", "_"), UNITS[part.phase])
    num = len(staged.programs)
    return Costs(tuple(seconds[program] for program in range(num)), (0,) * num, equal_links(staged.num_stages, link))


def run(staged, name, chunks=1, link=AT_ONCE, **times):
    order = make_order(name, Pipeline(staged.num_stages, staged.num_micro_batches, chunks))
    return simulate(assemble(staged, order), costs_of(staged, link, **times))


@pytest.mark.parametrize("backward", [1.0, 2.0, 3.0])
@pytest.mark.parametrize(("d", "m"), SHAPES)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_of_gpipe_and_1f1b(name, d, m, backward):
    found = run(chain(d, m), name, backward=backward)
    assert found.timeline.end_s == (m + d - 1) * (1 + backward)
    assert [found.timeline.idle(rank) for rank in range(d)] == pytest.approx([(d - 1) / (m + d - 1)] * d)


@pytest.mark.parametrize(("d", "m"), SHAPES)
def test_micro_batches_in_flight(d, m):
    staged = chain(d, m)
    assert [one.peak_micro_batches for one in run(staged, "1f1b").memory] == [min(m, d - s) for s in range(d)]
    assert [one.peak_micro_batches for one in run(staged, "gpipe").memory] == [m] * d
    assert [one.peak_micro_batches for one in run(staged, "eager-1f1b").memory] == [
        min(m, 2 * (d - s) - 1) for s in range(d)
    ]
    together = chain(d, m, fused=True)
    assert [one.peak_micro_batches for one in run(together, "1f1b").memory] == [min(m, d - s) for s in range(d)]
    assert [one.peak_micro_batches for one in run(together, "gpipe").memory] == [*[m] * (d - 1), 1]
    for name, most in (("zero-bubble", d), ("zero-bubble-h2", 2 * d - 1)):
        held = [one.peak_micro_batches for one in run(chain(d, m, split=True), name).memory]
        assert held == [min(m, most)] * d


@pytest.mark.parametrize(("p", "v"), [(1, 2), (2, 2), (2, 3), (4, 2)])
@pytest.mark.parametrize("m", [1, 2, 3, 8])
def test_a_micro_batch_in_several_stages_of_a_rank_is_one(p, v, m):
    """A micro-batch is on a rank from its first forward there to its last backward, whatever stages it is in."""
    order = make_order("interleaved", Pipeline(p * v, m, v))
    found = run(chain(p * v, m), "interleaved", chunks=v).memory
    for tasks, memory in zip(order.tasks, found, strict=True):
        there = [task.micro_batch for task in tasks]
        spans = [(there.index(i), len(there) - 1 - there[::-1].index(i)) for i in range(m)]
        most = max(sum(first <= at <= last for first, last in spans) for at in range(len(there)))
        assert memory.peak_micro_batches == most <= m


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (2, 8), (3, 6), (4, 4), (4, 8)])
def test_bubble_of_interleaved(p, m, v):
    """The idle share of 1F1B, (p - 1) / (m + p - 1), with v times as many micro-batches of a v-th of the work."""
    found = run(chain(p * v, m), "interleaved", chunks=v)
    assert found.timeline.end_s == (v * m + p - 1) * 3
    assert [found.timeline.idle(rank) for rank in range(p)] == pytest.approx([(p - 1) / (v * m + p - 1)] * p)


@pytest.mark.parametrize(("d", "m"), [(d, m) for d in range(2, 7) for m in range(d, 10)])
def test_bubble_of_zero_bubble(d, m):
    """(d - 1) (F + B - W) are idle, B and W the two halves of the backward, where 1F1B idles (d - 1) (F + B + W)."""
    staged = chain(d, m, split=True)
    found, plain = run(staged, "zero-bubble"), run(chain(d, m), "1f1b")
    assert found.timeline.end_s == 3 * m + (d - 1)
    assert plain.timeline.end_s == 3 * m + 3 * (d - 1)


@pytest.mark.parametrize(("d", "m"), [(d, m) for d in range(2, 5) for m in range(2 * d, 10)])
def test_running_ahead_hides_transfers(d, m):
    """A transfer is as long as a forward.

    1F1B waits for those of every micro-batch, and a schedule that runs ahead for those of one alone. ZB-H2 has weight
    gradients left for the time in which the last of them go back.
    """
    link = Link(1.0, 1e9)
    whole, halves = chain(d, m), chain(d, m, split=True)
    for staged, plain, ahead, waited in (
        (whole, "1f1b", "eager-1f1b", 2),
        (halves, "zero-bubble", "zero-bubble-h2", 1),
    ):
        found, waits = (run(staged, name, link=link).timeline for name in (ahead, plain))
        alone = run(staged, plain).timeline.end_s
        assert found.end_s < waits.end_s
        assert found.end_s == pytest.approx(alone + waited * (d - 1))


@pytest.mark.parametrize("m", range(1, 10))
@pytest.mark.parametrize("d", range(2, 7))
def test_zero_bubble_is_never_slower(d, m):
    staged = chain(d, m, split=True)
    assert run(staged, "zero-bubble").timeline.end_s <= run(staged, "1f1b").timeline.end_s
    assert m == 1 or run(staged, "zero-bubble").timeline.end_s < run(chain(d, m), "1f1b").timeline.end_s


def test_transfers_take_time_and_overlap():
    """Each device of two stages has 256 bytes of a row.

    At 64 bytes a second and a second of latency they take 5 s there and 5 s back.
    """
    found = run(chain(2, 2), "1f1b", link=Link(1.0, 64.0), forward=10.0, backward=20.0)
    moves = [(one.start_s, one.end_s, one.source_rank, one.target_rank) for one in found.timeline.moves]
    assert sorted(moves) == [(10.0, 15.0, 0, 1), (20.0, 25.0, 0, 1), (45.0, 50.0, 1, 0), (75.0, 80.0, 1, 0)]
    spans = [
        (str(one.task), one.start_s, one.end_s) for one in found.timeline.spans if one.task.micro_batch is not None
    ]
    assert sorted(spans, key=lambda one: (one[1], one[0])) == [
        ("forward of stage 0, micro-batch 0", 0.0, 10.0),
        ("forward of stage 0, micro-batch 1", 10.0, 20.0),
        ("forward of stage 1, micro-batch 0", 15.0, 25.0),
        ("backward of stage 1, micro-batch 0", 25.0, 45.0),
        ("forward of stage 1, micro-batch 1", 45.0, 55.0),
        ("backward of stage 0, micro-batch 0", 50.0, 70.0),
        ("backward of stage 1, micro-batch 1", 55.0, 75.0),
        ("backward of stage 0, micro-batch 1", 80.0, 100.0),
    ]


def test_transfers_between_two_ranks_queue():
    b = Builder()
    b.part("apply", 0, [], [("a", ROW), ("b", ROW)], kind="two")
    b.part("apply", 1, ["a"], [("c", SMALL)], kind="first")
    b.part("apply", 1, ["b"], [("d", SMALL)], kind="second")
    b.results += ["c", "d"]
    found = run(b.step(2, 1), "gpipe", link=Link(0.0, 64.0))
    assert [(one.start_s, one.end_s) for one in found.timeline.moves] == [(0.0, 4.0), (4.0, 8.0)]
    assert found.timeline.end_s == 8.0


@pytest.mark.parametrize("seed", range(10))
def test_spans_follow_from_the_list(seed):
    """No rank runs two things at a time.

    Nothing starts before what it reads is there; runs and transfers take what they cost.
    """
    staged = random_step(seed, 4, 3)
    for _, order in orders(4, 3):
        step = assemble(staged, order)
        timeline = simulate(step, costs_of(staged, Link(0.25, 1024.0), forward=1.5, apply=0.5)).timeline
        for rank in range(step.num_ranks):
            mine = [one for one in timeline.spans if one.rank == rank]
            assert all(before.end_s <= after.start_s for before, after in pairwise(mine))
        runs = [one for one in step.instructions if isinstance(one, Run)]
        made = {slot: span.end_s for one, span in zip(runs, timeline.spans, strict=True) for slot in one.outputs}
        moved = {one.uid: one for one in timeline.moves}
        for one in step.instructions:
            if hasattr(one, "uid"):
                assert moved[one.uid].start_s >= made.get(one.source, 0.0)
                assert moved[one.uid].end_s - moved[one.uid].start_s >= 0.25
                made[one.target] = moved[one.uid].end_s
        for one, span in zip(runs, timeline.spans, strict=True):
            assert all(span.start_s >= made.get(slot, 0.0) for slot in one.inputs)


def test_local_bytes():
    mesh = Mesh((("x", 2), ("y", 3)))
    assert local_bytes(Layout((8, 16), "f32", (("x",), ())), mesh) == 4 * 16 * 4
    assert local_bytes(Layout((12, 6), "bf16", (("x", "y"), ())), mesh) == 2 * 6 * 2
    assert local_bytes(Layout((7,), "i8", (("y",),)), mesh) == 3
    assert local_bytes(NUMBER, MESH) == 4


def in_turn():
    """An argument, a row made of it, and a weight that takes the argument over.

    They have 1024, 256 and 1024 bytes on a device.
    """
    b = Builder()
    b.argument("a", WEIGHT, consumed=True)
    b.part("apply", 0, ["a"], [("row", ROW)], kind="row")
    b.part("apply", 0, ["a", "row"], [("b", WEIGHT)], kind="update", takes_over=[("a", "b")])
    b.results += ["b"]
    return assemble(b.step(1, 1), make_order("gpipe", Pipeline(1, 1)))


def test_memory_by_hand():
    step = in_turn()
    (memory,) = memory_of(step)
    assert (memory.peak_bytes, memory.peak_at) == (1024 + 256, 1)
    assert live_slots(step, 1, 0) == (0, 1)
    assert live_slots(step, 2, 0) == (1, 2)
    (memory,) = memory_of(step, (100, 300))
    assert (memory.peak_bytes, memory.peak_at) == (1024 + 256 + 300, 2)


@pytest.mark.parametrize("seed", range(10))
def test_memory_by_counting(seed):
    """The peak of each rank is the most that its held slots take, over all instructions.

    What is taken over counts once.
    """
    staged = random_step(seed, 3, 4)
    for _, order in orders(3, 4):
        step = assemble(staged, order)
        for rank, memory in enumerate(memory_of(step)):
            sizes = [
                sum(local_bytes(step.slots[slot].layout, step.mesh_of(slot)) for slot in live_slots(step, at, rank))
                for at in range(len(step.instructions))
            ]
            assert memory.peak_bytes == max(sizes)
            assert sizes[memory.peak_at] == max(sizes)


def test_1f1b_holds_less_than_gpipe():
    """A micro-batch in flight is a kept row, of 256 bytes; 1F1B may have received some more by then."""
    small, large = (run(chain(4, 9), name).memory for name in ("1f1b", "gpipe"))
    for less, more in zip(small[1:], large[1:], strict=True):
        in_flight = more.peak_micro_batches - less.peak_micro_batches
        assert (in_flight - RECEIVE_AHEAD) * 256 <= more.peak_bytes - less.peak_bytes <= in_flight * 256


def test_a_longer_step_holds_no_more():
    """Sums are updated in place, and 1F1B's micro-batches in flight do not grow with their number."""
    peaks = [[one.peak_bytes for one in run(chain(4, m), "1f1b").memory[1:]] for m in (4, 9)]
    assert peaks[0] == peaks[1]


def test_results_are_held_to_the_end():
    step = in_turn()
    assert isinstance(step.instructions[-1], Fetch)
    assert live_slots(step, len(step.instructions) - 1, 0) == (2,)


def test_timeline_as_text():
    found = run(chain(2, 3), "1f1b")
    assert render(found.timeline) == (
        "rank 0 |F0 F1 ......B0--- F2 B1--- ...B2--- | 25% idle\n"
        "rank 1 |...F0 B0--- F1 B1--- F2 B2--- ......| 25% idle\n"
        "12 s in all, a column is 333 ms; F forward, B backward\n"
    )


def test_timeline_of_several_stages_on_a_rank():
    lines = render(run(chain(4, 2, split=True), "interleaved", chunks=2, apply=0.5).timeline, width=200).splitlines()
    assert lines[0].startswith("rank 0 |F0a F1a F0b F1b ")
    assert lines[2].endswith("F forward, I input-gradient, W weight-gradient, A apply, a b ...: the stages of a rank")


def test_timeline_too_wide_is_cut():
    lines = render(run(chain(2, 9), "gpipe").timeline, width=30).splitlines()
    assert lines[0] == "rank 0 |FFFFFFFFF...B B B B B B B B B | 10% idle"
    assert lines[1] == "rank 1 |.FFFFFFFFFB B B B B B B B B ..| 10% idle"


def test_timeline_without_time():
    assert render(Timeline(1, (Span(0, Task("setup", 0), 0.0, 0.0),))) == "nothing takes time\n"
