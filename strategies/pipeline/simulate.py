"""A step in time and memory before it runs, from its own list of instructions.

Each rank runs its programs one after the other, each as soon as its inputs are there. The host runs ahead: an
instruction waits for nothing but what it reads. A transfer goes beside all computing, from when its array is there;
those from one rank to another go one after the other, in the order of the list. Frees and takeovers happen in the
list's order too, so what is held does not depend on times.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from rhino.ir.plan.instructions import Feed, Fetch, Free, Run, Step, Transfer
from rhino.ir.plan.pieces import sent_bytes
from rhino.ir.plan.step_memory import RankMemory, memory_of
from rhino.ir.plan.timeline import Span, Timeline, TransferSpan


@dataclass(frozen=True, slots=True)
class Link:
    """The path from a device of one rank to that of another.

    A transfer takes `latency_s`, and a second per `bytes_per_s` of its part.
    """

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What a step's instructions take.

    Shapes: `run_s` and `temp_bytes` [programs], the latter on each device while the program runs; `links` [giving rank,
    taking rank].
    """

    run_s: tuple[float, ...]
    temp_bytes: tuple[int, ...]
    links: tuple[tuple[Link, ...], ...]


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated step: its `timeline` and the `memory` of its ranks [ranks].

    `timeline.idle(rank)` is a rank's share of bubbles and `timeline.end_s` the time of the step.
    """

    timeline: Timeline
    memory: tuple[RankMemory, ...]


def equal_links(num_ranks: int, link: Link) -> tuple[tuple[Link, ...], ...]:
    """Returns the links of ranks that are all equally far from each other."""
    return ((link,) * num_ranks,) * num_ranks


def simulate(step: Step, costs: Costs) -> Simulation:
    """Returns when each run and transfer of a step starts and ends, and what each rank holds.

    The step is one that verifies.
    """
    ready_s = dict.fromkeys((slot for slot, _ in step.constants), 0.0)
    free_s = [0.0] * step.num_ranks
    link_free_s: defaultdict[tuple[int, int], float] = defaultdict(float)
    spans: list[Span] = []
    moves: list[TransferSpan] = []
    for one in step.instructions:
        match one:
            case Run(program, inputs, outputs, task):
                rank = step.slots[(*outputs, *inputs)[0]].rank
                start_s = max([free_s[rank], *(ready_s[slot] for slot in inputs)])
                free_s[rank] = start_s + costs.run_s[program]
                ready_s |= dict.fromkeys(outputs, free_s[rank])
                spans.append(Span(rank, task, start_s, free_s[rank]))
            case Transfer(uid, source, target):
                ranks = (step.slots[source].rank, step.slots[target].rank)
                start_s = max(ready_s[source], link_free_s[ranks])
                link = costs.links[ranks[0]][ranks[1]]
                end_s = start_s + link.latency_s + sent_bytes(step, one) / link.bytes_per_s
                link_free_s[ranks] = ready_s[target] = end_s
                moves.append(TransferSpan(uid, *ranks, start_s, end_s))
            case Feed(target=target):
                ready_s[target] = 0.0
            case Free() | Fetch():
                pass
    return Simulation(Timeline(step.num_ranks, tuple(spans), tuple(moves)), memory_of(step, costs.temp_bytes))
