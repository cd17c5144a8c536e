"""Stages: the search against all choices on small problems, and its parts by hand."""

import ctypes
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from rhino.strategies.pipeline.stages.cut import StageAnswer, solve_stages
from rhino.strategies.pipeline.stages.line import cut, lines_of, on_devices, stretches
from rhino.strategies.pipeline.stages.merge import merge
from rhino.strategies.pipeline.stages.rows import StageRows
from rhino.strategies.pipeline.stages.stage_problem import (
    OPEN,
    GroupBytes,
    RematSteps,
    StageProblem,
    make_nets,
    nets_of,
)
from rhino.strategies.pipeline.stages.stage_remat import device_loads, fits
from rhino.strategies.pipeline.stages.windows import open_windows
from rhino.strategies.solver.answer import Infeasible
from rhino.strategies.solver.lp.linear_programs import silent_stdout, solve_rows


def problem_of(num_stages, work, nets, pinned=None, edges=None, **more):
    """A problem whose nets are (maker, readers, bytes); a maker of None has no edges to its readers."""
    num = len(work)
    made = (
        [(maker, reader) for maker, readers, _ in nets if maker is not None for reader in readers]
        if edges is None
        else edges
    )
    ends = np.array(sorted(set(made)), dtype=np.int64).reshape(-1, 2)
    more = {"late": np.zeros(num, dtype=bool), "own_bytes": np.zeros(num), **more}
    return StageProblem(
        num_stages=num_stages,
        num_micro_batches=more.pop("num_micro_batches", 4),
        work=np.array(work, dtype=np.float64),
        before=ends[:, 0],
        after=ends[:, 1],
        nets=make_nets(([*readers, *([] if maker is None else [maker])], size) for maker, readers, size in nets),
        pinned=np.full(num, OPEN) if pinned is None else np.array(pinned),
        **more,
    )


def random_problem(seed, num_stages, most=7, with_budget=False, unlike=False, with_remat=False):
    """A random graph: tensors with one or two readers, parameters, sometimes pins and a budget.

    Half of it may count as late. On `unlike` devices each node takes as long as it does there, each has its budget, and
    what nodes hold may be what they hold there. With steps of rematerialization more is saved than without.
    """
    rng = np.random.default_rng(seed)
    num = int(rng.integers(num_stages, most + 1))
    nets = []
    for maker in range(num - 1):
        readers = sorted(set(rng.integers(maker + 1, num, size=rng.integers(1, 3)).tolist()))
        nets.append((maker, readers, float(rng.integers(0, 9))))
    for _ in range(rng.integers(0, 3)):
        nets.append((None, rng.integers(0, num, size=2).tolist(), float(rng.integers(1, 5))))
    work = rng.integers(0, 6, size=num).astype(float)
    work[rng.integers(num)] += 1
    pinned = np.where(rng.random(num) < 0.1, rng.integers(0, 2 * num_stages - 1, size=num), OPEN)
    more = {"late": np.arange(num) > rng.integers(num), "own_bytes": rng.integers(0, 4, size=num).astype(float)}
    if with_budget:
        more["resident"] = make_nets(
            ((rng.integers(0, num, size=2).tolist(), float(rng.integers(1, 5))) for _ in range(3)), least=1
        )
        more["saved"] = make_nets((([int(rng.integers(num))], float(rng.integers(1, 5))) for _ in range(3)), least=1)
        more["budget_bytes"] = (float(rng.integers(6, 20)),) * num_stages
    if seed % 2:
        more["apart"] = rng.integers(0, 3, size=num) * [1.0, 1e-6][seed // 2 % 2]
    if unlike:
        more["group"] = tuple(rng.integers(0, 2, size=num_stages).tolist())
        more["time_ratio"] = rng.integers(1, 9, size=(2, num)) / 4
    if unlike and with_budget:
        more["budget_bytes"] = tuple(rng.integers(6, 20, size=num_stages).astype(float).tolist())
    if with_remat:
        saved = [int(rng.integers(num)) for _ in range(4)]
        more["saved"] = make_nets((([node], float(rng.integers(3, 7))) for node in saved), least=1)
        more["remat"] = random_steps(rng, saved, num)
        more["budget_bytes"] = tuple(rng.integers(12, 26, size=num_stages).astype(float).tolist())
    if unlike and with_budget and seed % 3:
        counts = num, len(more["resident"]), len(more["saved"])
        more["group_bytes"] = tuple(
            [GroupBytes(*(rng.integers(1, 5, size=count).astype(float) for count in counts)) for _ in range(2)]
        )
    return problem_of(num_stages, work, nets, pinned, **more)


def random_steps(rng, saved, num):
    """Three pieces, one of them of two steps, that free something of what these nodes save."""
    previous = [OPEN, OPEN, 1, OPEN]
    nodes = [np.unique([saved[step], *rng.integers(num, size=step % 2)]) for step in range(len(previous))]
    size = rng.integers(2, 7, size=len(previous)) / 2
    return RematSteps(
        nets_of(nodes, size),
        rng.integers(0, 5, size=len(previous)).astype(float),
        rng.integers(0, 3, size=len(previous)).astype(float),
        np.array(previous),
        np.zeros(num),
    )


def least_added(problem, device, s, held):
    """What device s adds at least to hold no more than its budget, infinite where it cannot: all sets of steps."""
    remat, in_flight, times = problem.remat, min(problem.num_micro_batches, problem.num_stages - s), 1.0
    if problem.group_bytes:
        times = problem.group_bytes[problem.group[s]].saved.sum() / problem.saved.size.sum()
    there = [step for step in range(len(remat)) if all(device[i] == s for i in remat.nets.nodes(step))]
    best = float("inf")
    for taken in (set(some) for number in range(len(there) + 1) for some in combinations(there, number)):
        if all(remat.previous[step] in {OPEN, *taken} for step in taken):
            freed = sum(remat.nets.size[step] for step in taken)
            again = max((remat.alive_bytes[step] for step in taken), default=0.0)
            if held + times * (again - in_flight * freed) <= problem.budget_bytes[s] + 1e-9:
                best = min(best, sum(problem.step_seconds(problem.group_of(s))[step] for step in taken))
    return best


def all_choices(problem):
    """Every legal choice with its bytes, largest work and largest memory, by enumeration."""
    for choice in product(range(2 * problem.num_stages - 1), repeat=problem.num_nodes):
        stage = np.array(choice)
        if not all(choice[a] <= choice[b] for a, b in zip(problem.before, problem.after, strict=True)):
            continue
        if any(pin not in (OPEN, at) for pin, at in zip(problem.pinned, choice, strict=True)):
            continue
        device = [min(v, 2 * problem.num_stages - 2 - v) for v in choice]
        moved = sum(
            problem.nets.size[n] * (len({device[i] for i in problem.nets.nodes(n)}) - 1)
            for n in range(len(problem.nets))
        )
        more = problem.apart if len(problem.apart) else [0.0] * problem.num_nodes
        takes = [
            (problem.work[i] + (more[i] if device[i] < problem.num_stages - 1 else 0.0))
            * (problem.time_ratio[problem.group[device[i]]][i] if problem.group else 1.0)
            for i in range(problem.num_nodes)
        ]
        load = [sum(takes[i] for i in range(problem.num_nodes) if device[i] == s) for s in range(problem.num_stages)]
        memory = [0.0] * problem.num_stages
        for s in range(problem.num_stages):
            own = problem.own_bytes, problem.resident.size, problem.saved.size
            if problem.group_bytes:
                there = problem.group_bytes[problem.group[s]]
                own = there.own, there.resident, there.saved
            memory[s] += sum(own[0][i] for i in range(problem.num_nodes) if device[i] == s)
            for nets, sizes, times in (
                (problem.resident, own[1], 1),
                (problem.saved, own[2], min(problem.num_micro_batches, problem.num_stages - s)),
            ):
                memory[s] += times * sum(
                    sizes[n] for n in range(len(nets)) if any(device[i] == s for i in nets.nodes(n))
                )
        if problem.budget_bytes is None:
            yield stage, moved, max(load)
            continue
        load = [one + least_added(problem, device, s, memory[s]) for s, one in enumerate(load)]
        if max(load) < float("inf"):
            yield stage, moved, max(load)


def check(problem, tolerance):
    choices = list(all_choices(problem))
    found = solve_stages(problem, tolerance)
    if not choices:
        assert isinstance(found, Infeasible)
        return
    assert isinstance(found, StageAnswer)
    least = min(load for _, _, load in choices)
    assert found.least_s == pytest.approx(least)
    best = min(moved for _, moved, load in choices if load <= least * (1 + tolerance) + 1e-9)
    assert found.cost == pytest.approx(best)
    assert found.bound == pytest.approx(best, abs=1e-4)
    device = problem.device(found.stage)
    assert problem.is_legal(found.stage)
    assert fits(problem, device, found.limit_s)
    assert found.work_s == device_loads(problem, device).max()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("with_budget", [False, True])
def test_two_stages_as_enumerated(seed, with_budget):
    check(random_problem(seed, 2, most=8, with_budget=with_budget), [0.0, 0.1, 0.5][seed % 3])


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("with_budget", [False, True])
def test_three_stages_as_enumerated(seed, with_budget):
    check(random_problem(seed, 3, most=6, with_budget=with_budget), [0.0, 0.2, 1.0][seed % 3])


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("with_budget", [False, True])
@pytest.mark.parametrize(("num_stages", "most"), [(2, 8), (3, 6)])
def test_stages_on_unlike_devices_as_enumerated(seed, with_budget, num_stages, most):
    problem = random_problem(seed, num_stages, most=most, with_budget=with_budget, unlike=True)
    check(problem, [0.0, 0.2, 1.0][seed % 3])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(("num_stages", "most"), [(2, 7), (3, 5)])
def test_stages_that_recompute_as_enumerated(seed, num_stages, most):
    """Boundaries and what each stage recomputes, chosen together; on unlike devices too."""
    problem = random_problem(seed, num_stages, most, with_budget=True, unlike=seed % 4 == 0, with_remat=True)
    check(problem, [0.0, 0.2, 1.0][seed % 3])


def test_a_large_problem_is_solved_in_windows_as_well_as_by_all_choices(monkeypatch):
    """Joined nodes and windows lose nothing on chains with a backward pass, where the best cut is known.

    That cut moves one tensor each way.
    """
    monkeypatch.setattr("rhino.strategies.pipeline.stages.cut.MOST_OPEN", 0)
    for num_layers, num_stages in ((8, 2), (12, 3), (12, 4)):
        found = solve_stages(chain(num_layers, num_stages), 0.1)
        assert isinstance(found, StageAnswer)
        assert found.cost == 2 * 8 * (num_stages - 1)
        assert found.is_optimal


def chain(num_layers, num_stages):
    """Layers, each an activation of 8 bytes from the one before, then gradients down again.

    Each layer has a weight of its own and its gradient. Nodes: forward, then for each layer from the last its
    gradients, of the activation and of the weight.
    """
    forward = list(range(num_layers))
    back = {layer: num_layers + 2 * step for step, layer in enumerate(reversed(forward))}
    nets = []
    for layer in forward:
        readers = [back[layer], back[layer] + 1]  # both gradients read what the layer made
        nets.append((layer, [*readers, *([layer + 1] if layer + 1 < num_layers else [])], 8.0))
        gradient = [back[layer - 1], back[layer - 1] + 1] if layer else []
        if gradient:
            nets.append((back[layer], gradient, 8.0))
        nets.append((None, [layer, back[layer], back[layer] + 1], 4.0))
    work = [1.0] * (3 * num_layers)
    edges = [(maker, reader) for maker, readers, _ in nets if maker is not None for reader in readers]
    late = np.arange(3 * num_layers) >= num_layers
    resident = make_nets((([layer, back[layer], back[layer] + 1], 4.0) for layer in forward), least=1)
    return problem_of(num_stages, work, nets, edges=edges, late=late, resident=resident)


def uneven(crossing, other, in_seconds=True):
    """Two stages of 50 seconds each, with `crossing` between them in a step; or of 51 and 49, with `other`."""
    return problem_of(2, [50.0, 1.0, 49.0], [(0, [1], crossing), (1, [2], other)], in_seconds=in_seconds)


@pytest.mark.parametrize(
    ("problem", "tolerance", "first"),
    [
        # 9 times 50, and an eighth of the crossing to begin with; else 8 times 51, and 49
        (
            uneven(1.0, 0.5),
            0.005,
            1,
        ),
        (uneven(80.0, 0.5), 0.02, 2),
        (uneven(80.0, 79.0), 0.005, 1),
        (uneven(1.0, 0.5, in_seconds=False), 0.05, 2),
    ],
)
def test_without_a_tolerance_it_is_the_one_by_which_a_step_takes_least(problem, tolerance, first):
    found = solve_stages(problem, None)
    assert isinstance(found, StageAnswer)
    assert found.limit_s == pytest.approx(50.0 * (1 + tolerance))
    assert int((problem.device(found.stage) == 0).sum()) == first


def test_the_folded_line_of_a_chain_is_its_layers():
    problem = chain(6, 3)
    line = lines_of(problem)[2]  # told by parameters alone
    parts = on_devices(problem, stretches(problem, line))
    moved, ends = cut(problem, parts, limit_s=6.0)
    stage = line.stages(problem, ends)
    assert moved == 2 * 8 * 2
    assert stage.tolist() == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4]
    assert problem.is_legal(stage)


def test_joining_keeps_the_best_choice_within_balance():
    """With pinned ends and no limits of work, the best choice of a random problem moves no more bytes once joined."""
    for seed in range(60):
        problem = random_problem(seed, 2, most=8)
        pinned = problem.pinned.copy()
        pinned[:] = OPEN
        pinned[0], pinned[-1] = 0, 1
        problem = replace(problem, pinned=pinned)
        joined = merge(problem, most_work_s=np.inf)
        whole = min((moved for _, moved, _ in all_choices(problem)), default=None)
        assert min((moved for _, moved, _ in all_choices(joined.problem)), default=None) == whole


def test_twenty_runs_are_one():
    problem = random_problem(3, 3, most=7)
    assert len({solve_stages(problem, 0.2).stage.tobytes() for _ in range(20)}) == 1


def test_pins_that_contradict_an_edge_leave_no_choice():
    problem = problem_of(2, [1.0, 1.0], [(0, [1], 1.0)], pinned=[2, 0])
    assert isinstance(solve_stages(problem, 0.5), Infeasible)


def test_a_pin_may_put_more_on_a_device_than_another_would_take_for_all():
    ratio = np.array([[0.25, 0.25], [8.0, 8.0]])
    problem = problem_of(2, [1.0, 1.0], [(None, [0, 1], 1.0)], pinned=[1, 0], group=(0, 1), time_ratio=ratio)
    found = solve_stages(problem, 0.2)
    assert isinstance(found, StageAnswer)
    assert (found.stage.tolist(), found.work_s) == ([1, 0], 8.0)


def test_one_stage_moves_nothing():
    found = solve_stages(problem_of(1, [1.0, 2.0], [(0, [1], 1.0)]), 0.0)
    assert (found.cost, found.work_s, found.stage.tolist()) == (0.0, 3.0, [0, 0])


def test_what_a_solver_prints_by_itself_is_not_among_the_output(capfd):
    libc = ctypes.CDLL(None)
    libc.puts(b"before")
    with silent_stdout():
        libc.puts(b"its own")
    libc.puts(b"behind")
    libc.fflush(None)
    assert capfd.readouterr().out == "before\nbehind\n"


def test_where_the_way_back_begins_is_the_best_of_the_guesses(monkeypatch):
    monkeypatch.setattr("rhino.strategies.pipeline.stages.cut.MOST_OPEN", 0)
    problem = chain(12, 2)
    wrong = np.arange(problem.num_nodes) >= problem.num_nodes - 4
    alone = solve_stages(replace(problem, late=wrong), 0.1)
    both = solve_stages(replace(problem, late=wrong, turns=(problem.late,)), 0.1)
    assert both.cost == 2 * 8 < alone.cost


def test_the_relaxation_leaves_nothing_open_along_edges_where_ways_are_open():
    """Node 2 stands between two on the last device, so it is there, and what it shares with node 0 is sent."""
    problem = problem_of(2, [1, 1, 1, 1], [(None, [0, 2], 1.0)], [0, 1, OPEN, 1], [(1, 2), (2, 3)])
    rows = StageRows(problem, open_windows(problem), limit_s=9.0)
    assert rows.bound(solve_rows(rows.rows(), integer=False, step_limit=10).bound) == pytest.approx(1.0)


def test_memory_that_is_enough_for_everything_on_one_device_needs_no_rows():
    problem = random_problem(1, 3, with_budget=True)
    total = problem.own_bytes.sum() + problem.resident.size.sum() + 3 * problem.saved.size.sum()
    free, enough, less = (
        StageRows(replace(problem, budget_bytes=most), open_windows(problem), limit_s=99.0).rows().matrix.shape
        for most in (None, (total,) * 3, (total - 1,) * 3)
    )
    assert free == enough
    assert less > free


def test_devices_keep_work_where_no_tolerance_is_given():
    """All on one device takes no transfers, and is within 1 of the best balance of two: it was not asked for."""
    problem = problem_of(2, [1.0, 1.0], [(0, [1], 50.0)], in_seconds=True)
    chosen = solve_stages(problem, None)
    assert sorted(problem.device_work(problem.device(chosen.stage)).tolist()) == [1.0, 1.0]
    given = solve_stages(problem, 1.0)
    assert sorted(problem.device_work(problem.device(given.stage)).tolist()) == [0.0, 2.0]


def test_a_step_of_transfers_is_cut_far_from_the_best_balance():
    """The cut of 6 and 14 moves little, and is 0.4 over the best balance: the step is shorter by what is not moved."""
    problem = problem_of(2, [6.0, 4.0, 10.0], [(0, [1], 1.0), (1, [2], 500.0)], in_seconds=True)
    chosen = solve_stages(problem, None)
    assert problem.device_work(problem.device(chosen.stage)).tolist() == [6.0, 14.0]
