"""Staged steps for tests, small and random ones.

What they compute is given as expressions, and a machine runs instructions on expressions.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instructions import (
    Copy,
    Feed,
    Fetch,
    Free,
    Layout,
    Local,
    Receive,
    Run,
    Send,
    Step,
    StepProgram,
    Transfer,
    reads,
    writes,
)
from rhino.ir.plan.stage_programs import MICRO_BATCH, ONCE, Argument, StagedStep, StageProgram
from rhino.strategies.pipeline.schedules import SCHEDULES, Pipeline, make_order

MESH = Mesh((("x", 2),))
NUMBER = Layout((), "i32", ())
ROW = Layout((8, 16), "f32", (("x",), ()))
WEIGHT = Layout((16, 16), "f32", ((), ()))
SMALL = Layout((), "f32", ())


def orders(num_stages, num_micro_batches):
    """Every schedule's order, the interleaved one's for each number of chunks that divides the stages."""
    for name, schedule in SCHEDULES.items():
        for chunks in range(1, num_stages + 1 if schedule.chunked else 2):
            if num_stages % chunks == 0:
                yield f"{name}/{chunks}", make_order(name, Pipeline(num_stages, num_micro_batches, chunks))


@dataclass
class Builder:
    """Collects parts; parts of the same kind with the same layouts are one program."""

    layouts: dict = field(default_factory=lambda: {MICRO_BATCH: NUMBER})
    programs: list = field(default_factory=list)
    numbers: dict = field(default_factory=dict)
    parts: list = field(default_factory=list)
    arguments: list = field(default_factory=list)
    results: list = field(default_factory=list)

    def argument(self, name, layout, consumed=False):
        self.layouts[name] = layout
        self.arguments.append(Argument(name, layout, consumed))

    def part(self, phase, stage, reads, gives, kind="", takes_over=()):
        """`gives` are pairs (name, layout); `takes_over` pairs of names: read, given."""
        self.layouts |= dict(gives)
        reads, names = tuple(reads), tuple(name for name, _ in gives)
        inputs, outputs = tuple(self.layouts[name] for name in reads), tuple(layout for _, layout in gives)
        kept = [(name, name) for name in names if name in reads]
        donated = tuple((reads.index(a), names.index(b)) for a, b in (*kept, *takes_over))
        key = (kind or phase, inputs, outputs, donated)
        if key not in self.numbers:
            self.numbers[key] = len(self.programs)
            self.programs.append(
                StepProgram(
                    f"{kind or phase}{len(self.programs)}", f"{len(self.programs)}.mlir", inputs, outputs, donated
                )
            )
        self.parts.append(StageProgram(phase, stage, self.numbers[key], reads, names))

    def step(self, num_stages, num_micro_batches):
        programs, parts, arguments = tuple(self.programs), tuple(self.parts), tuple(self.arguments)
        return StagedStep((MESH,) * num_stages, num_micro_batches, programs, parts, arguments, tuple(self.results))


def chain(num_stages, num_micro_batches, split=False, fused=False):
    """Equal layers one after the other: a forward keeps one row for its backward; weights are updated in place."""
    return staged(num_stages, num_micro_batches, {s: [s - 1] for s in range(1, num_stages)}, split=split, fused=fused)


def random_step(seed, num_stages, num_micro_batches):
    """Stages that read any earlier stages or none, with tied parameters and losses on several stages.

    Gradients are clipped by the norm of all.
    """
    rng = random.Random(seed)
    sources = {s: sorted(rng.sample(range(s), rng.randint(0, min(s, 3)))) for s in range(1, num_stages)}
    tied = tuple(sorted(rng.sample(range(num_stages), min(num_stages, rng.choice([0, 0, 2, 3])))))
    losses = tuple(s for s in range(num_stages) if rng.random() < 0.3 and s < num_stages - 1)
    # Without a gradient from anywhere a stage has no backward.
    wide = tuple(s for s in range(num_stages) if rng.random() < 0.3)
    return staged(
        num_stages,
        num_micro_batches,
        sources,
        rng.random() < 0.5,
        rng.random() < 0.5,
        tied,
        losses,
        wide,
        rng.random() < 0.5,
    )


def staged(num_stages, num_micro_batches, sources, split=False, fused=False, tied=(), losses=(), wide=(), norm=False):
    """A training step. `sources[s]` are the stages whose outputs stage s reads.

    `tied` stages share a parameter, `losses` have one.
    """
    b = Builder()
    last = num_stages - 1
    losses = (*losses, last)
    readers = {s: [t for t in range(num_stages) if s in sources.get(t, [])] for s in range(num_stages)}
    learning = set(range(num_stages))
    for s in range(last, -1, -1):
        if s not in losses and not any(t in learning for t in readers[s]):
            learning.discard(s)
    home = tied[0] if tied else None
    for s in range(num_stages):
        b.argument(f"w{s}", WEIGHT, consumed=s % 2 == 0)
    if tied:
        b.argument("shared", WEIGHT, consumed=True)
    b.argument("data", Layout((num_micro_batches * 8, 16), "f32", ((), ())))
    stack = Layout((num_micro_batches, 8, 16), "f32", ((), ("x",), ()))
    weights = {s: [f"w{s}", *(["shared"] if s in tied else [])] for s in range(num_stages)}
    for s in range(num_stages):
        sums = [(f"sum-w{s}", WEIGHT)] if s in learning else []
        sums += [("sum-shared", WEIGHT)] if s == home and any(t in learning for t in tied) else []
        sums += [(f"loss{s}", SMALL)] if s in losses else []
        if not sources.get(s):
            b.part("setup", s, ["data"], [*sums, (f"batch{s}", stack)])
        elif sums:
            b.part("setup", s, [], sums)
    inputs = {s: [f"out{t}" for t in sources.get(s, [])] or [f"batch{s}", MICRO_BATCH] for s in range(num_stages)}
    for s in range(num_stages):
        if s == last and fused:
            continue
        kept = [(f"kept{s}-{i}", ROW) for i in range(2 if s in wide else 1)] if s in learning else []
        out = [(f"out{s}", ROW)] if readers[s] else []
        loss = [(f"loss{s}", SMALL)] if s in losses else []
        if kept or out or loss:
            b.part("forward", s, [*weights[s], *inputs[s], *(name for name, _ in loss)], [*out, *kept, *loss])
    for s in sorted(learning, reverse=True):
        whole = s == last and fused
        forward = next((part for part in b.parts if (part.phase, part.stage) == ("forward", s)), None)
        kept = [name for name in forward.gives if name.startswith("kept")] if forward else []
        reads = [*weights[s], *(inputs[s] if whole else kept), *(f"grad{s}-{t}" for t in readers[s] if t in learning)]
        loss = [(f"loss{s}", SMALL)] if whole else []
        grads = [(f"grad{t}-{s}", ROW) for t in sources.get(s, []) if t in learning]
        sums, also = [(f"sum-w{s}", WEIGHT)], []
        if s in tied:
            # Whoever comes last, the stage nearest to the start, adds what the others found.
            if s == home:
                also = [f"part{t}" for t in tied if t != home and t in learning]
                sums.append(("sum-shared", WEIGHT))
            else:
                sums.append((f"part{s}", WEIGHT))
        added = [name for name, _ in sums if name.startswith("sum")]
        if split:
            extra = [(f"between{s}", ROW)]
            if grads or loss:
                b.part("input-gradient", s, [*reads, *(name for name, _ in loss)], [*grads, *extra, *loss])
                b.part("weight-gradient", s, [f"between{s}", *also, *added], sums)
            else:
                b.part("weight-gradient", s, [*reads, *also, *added], sums)
        else:
            b.part("backward", s, [*reads, *also, *added, *(name for name, _ in loss)], [*grads, *sums, *loss])
    if home is not None and home not in learning:
        tied = ()
    finish(b, sorted(learning), losses, norm, home if tied else None)
    return b.step(num_stages, num_micro_batches)


def finish(b, learning, losses, norm, home):
    """The apply parts: each stage's norm, their sum on the first stage, the updates; the losses' sum on the last."""
    sums = {s: [f"sum-w{s}", *(["sum-shared"] if s == home else [])] for s in learning}
    scale = []
    if norm:
        for s in learning:
            b.part("apply", s, sums[s], [(f"norm{s}", SMALL)], kind="norm")
        b.part("apply", learning[0], [f"norm{s}" for s in learning], [("norm", SMALL)], kind="whole-norm")
        scale = ["norm"]
    for s in learning:
        old = [f"w{s}", *(["shared"] if s == home else [])]
        new = [f"new-{name}" for name in old]
        pairs = tuple(zip(old, new, strict=True))
        b.part("apply", s, [*scale, *old, *sums[s]], [(name, WEIGHT) for name in new], kind="update", takes_over=pairs)
        b.results += new
    b.part("apply", losses[-1], [f"loss{s}" for s in losses], [("loss", SMALL)], kind="loss")
    b.results += ["loss", "w0" if 0 not in learning else "loss"]


class Expressions:
    """Equal expressions have equal numbers."""

    def __init__(self):
        self.numbers = {}

    def __call__(self, *parts):
        return self.numbers.setdefault(parts, len(self.numbers))


def meaning(staged, expression):
    """What each result of a staged step is: the parts of one micro-batch after those of the other."""
    values = {argument.name: expression("argument", i) for i, argument in enumerate(staged.arguments)}

    def run(part):
        inputs = [values[name] for name in part.reads]
        values.update({name: expression(part.program, i, *inputs) for i, name in enumerate(part.gives)})

    for part in staged.parts:
        if part.phase == "setup":
            run(part)
    for number in range(staged.num_micro_batches):
        values[MICRO_BATCH] = expression("number", number)
        for part in staged.parts:
            if part.phase not in ONCE:
                run(part)
    for part in staged.parts:
        if part.phase == "apply":
            run(part)
    return [values[name] for name in staged.results]


class UnsafeError(Exception):
    """An instruction touches what is not there."""


class Buffer:
    """An array: its expression, or the buffer that it will be pulled from, as late as can be."""

    def __init__(self, value=None, pulled_from=None):
        self.value, self.pulled_from, self.lives = value, pulled_from, True

    def get(self):
        if not self.lives:
            raise UnsafeError("taken over")
        if self.value is None:
            self.value = self.pulled_from.get()
        return self.value


def execute(step, expression):
    """The results of running a list on buffers, where a transfer pulls at the last moment.

    What is left on a rank raises UnsafeError, too.
    """
    slots = {slot: Buffer(expression("number", number)) for slot, number in step.constants}
    results, seen, moves, ends = {}, set(), [], {}

    def take(slot):
        if slot not in slots:
            raise UnsafeError("not there")
        return slots[slot]

    for one in step.instructions:
        match one:
            case Run(program, inputs, outputs):
                values = [take(slot).get() for slot in inputs]
                for i, _ in step.programs[program].donated:
                    slots.pop(inputs[i]).lives = False
                slots |= {slot: Buffer(expression(program, i, *values)) for i, slot in enumerate(outputs)}
            case Transfer(uid, source, target):
                if uid in seen:
                    raise UnsafeError("one number for two transfers")
                seen.add(uid)
                slots[target] = Buffer(pulled_from=take(source))
                moves.append(slots[target])
            case Free(gone):
                for slot in gone:
                    take(slot)
                    del slots[slot]
            case Feed(argument, target):
                slots[target] = Buffer(expression("argument", argument))
            case Fetch(source, result):
                results[result] = ends[source] = take(source)
    for move in moves:
        move.get()
    left = [slot for slot in slots if slot not in ends and slot not in dict(step.constants)]
    if left or any(slot not in slots for slot in ends):
        raise UnsafeError("left over, or freed although fetched")
    return [results[number].get() for number in sorted(results)]


def play(step, processes, bound, rng, expression):
    """The results of processes that dispatch their lists at random speeds to queues of `bound` launches a rank.

    UnsafeError is raised if they are stuck. `processes` are pairs of ranks and list.
    """
    values = {slot: expression("number", number) for slot, number in step.constants}
    queues = [[] for _ in range(step.num_ranks)]
    sent, wanted, results, at = {}, {}, {}, [0] * len(processes)

    def finish(rank):
        """Ends the first launch of a rank's queue, if its inputs are there."""
        run = queues[rank][0]
        if any(slot not in values for slot in run.inputs):
            return False
        found = [values[slot] for slot in run.inputs]
        values.update({slot: expression(run.program, i, *found) for i, slot in enumerate(run.outputs)})
        queues[rank].pop(0)
        return True

    def arrive(uid):
        """Ends a transfer that both sides know of, if its array is there."""
        if uid not in sent or sent[uid] not in values:
            return False
        values[wanted.pop(uid)] = values[sent[uid]]
        return True

    def dispatch(process):
        """Dispatches the next instruction of a process, if there is room in the queue."""
        match processes[process][1][at[process]]:
            case Run() as run:
                queue = queues[step.slots[run.outputs[0]].rank]
                if len(queue) == bound:
                    return False
                queue.append(run)
            case Copy(uid, source, target):
                sent[uid], wanted[uid] = source, target
            case Send(uid, source):
                sent[uid] = source
            case Receive(uid, _, target):
                wanted[uid] = target
            case Feed(argument, target):
                values[target] = expression("argument", argument)
            case Fetch(source, result):
                results[result] = source
        at[process] += 1
        return True

    moves = True
    while moves:
        moves = [(finish, rank) for rank, queue in enumerate(queues) if queue] + [(arrive, uid) for uid in wanted]
        moves += [(dispatch, process) for process, (_, part) in enumerate(processes) if at[process] < len(part)]
        if not any(act(number) for act, number in rng.sample(moves, len(moves))):
            break
    if moves:
        raise UnsafeError("stuck")
    return [values[results[number]] for number in sorted(results)]


def of_ranks(step: Step, ranks: Container[int]) -> Iterator[Local]:
    """Yields the list of the process that has devices of `ranks`, one instruction of the step after another."""

    def is_here(slot: int) -> bool:
        return step.slots[slot].rank in ranks

    for one in step.instructions:
        match one:
            case Transfer(uid, source, target):
                kind = {(True, True): Copy, (True, False): Send, (False, True): Receive}.get(
                    (is_here(source), is_here(target))
                )
                if kind is not None:
                    yield kind(uid, source, target)
            case Free(slots):
                if own := tuple(slot for slot in slots if is_here(slot)):
                    yield Free(own)
            case _:
                if is_here((*reads(one), *writes(one))[0]):
                    yield one
