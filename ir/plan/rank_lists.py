"""A step's list as one list for each rank, and these as one again.

Each rank's list says what it does, first to last, and a transfer stands in the lists of both of its ranks. In which
order things stand that are on different ranks means nothing. So the lists are merged by a logical clock, and that there
is such an order is the proof that the ranks do not wait for each other: a run or transfer is later than all before it
in the list of each of its ranks.

Errors    RHI-STEP-007 a transfer is not in two lists, once as a send and once as a receive; RHI-STEP-010 no order.
Source    Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System", 1978.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instruction_list import SIMPLE, Form, InstructionList, joined
from rhino.ir.plan.instructions import Global, Local, Step
from rhino.ir.plan.parts import projections

_FIX = "plan again; lists that were written by hand have to be corrected"


@dataclass(frozen=True, slots=True)
class _Together:
    """All lists, one after another: the list, the rank of each instruction, and the places of both sides of transfers.

    Shapes: `rank_of` [instructions]; `sends` and `receives` [transfers], alike in order.
    """

    every: InstructionList[Local]
    rank_of: Ints
    sends: Ints
    receives: Ints


def split(step: Step) -> list[InstructionList[Local]]:
    """Returns the list of each rank of a step [ranks]; what is freed on several is freed in the list of each."""
    return projections(step, [(rank,) for rank in range(step.num_ranks)])


def merged(lists: Sequence[InstructionList[Local]]) -> InstructionList[Global]:
    """Returns the list of a step of those of its ranks [ranks], by clock and then by rank.

    Raises:
        RhinoError: RHI-STEP-007, RHI-STEP-010.
    """
    together = _together(lists)
    every, sends = together.every, together.sends
    clock = _clocks(together)
    kept = np.flatnonzero(~every.is_kind("receive"))
    # What has a transfer's clock and is on one of its ranks stands behind it.
    order = kept[np.lexsort((kept, together.rank_of[kept], ~every.is_kind("send")[kept], clock[kept]))]
    numbers = every.numbers.copy()
    starts = every.starts[sends]
    numbers[starts + 1], numbers[starts + 2] = every.numbers[starts + 2], every.numbers[starts + 1]
    forms = [Form("transfer", *SIMPLE["transfer"]) if form.kind == "send" else form for form in every.forms]
    found: InstructionList[Global] = InstructionList(forms, every.form_of, numbers)
    return found.taken(order)


def _together(lists: Sequence[InstructionList[Local]]) -> _Together:
    every = joined(lists)
    rank_of = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
    sides = [np.flatnonzero(every.is_kind(kind)) for kind in ("send", "receive")]
    uids = [every.numbers[every.starts[places] + 1] for places in sides]
    orders = [np.argsort(one, kind="stable") for one in uids]
    sent, received = (one[order] for one, order in zip(uids, orders, strict=True))
    sends, receives = (places[order] for places, order in zip(sides, orders, strict=True))
    if len(sent) != len(received) or np.any(sent != received) or np.any(sent[1:] == sent[:-1]):
        raise _unmatched(sent, received)
    return _Together(every, rank_of, sends, receives)


def _unmatched(sent: Ints, received: Ints) -> RhinoError:
    """Names the first transfer that is not sent once and received once."""
    counts = [
        dict(zip(*map(np.ndarray.tolist, np.unique(one, return_counts=True)), strict=True)) for one in (sent, received)
    ]
    uid = min(uid for one in counts for uid in one if (counts[0].get(uid), counts[1].get(uid)) != (1, 1))
    what = f"transfer {uid} is sent {counts[0].get(uid, 0)} times and received {counts[1].get(uid, 0)} times"
    return RhinoError("RHI-STEP-007", what, fix=_FIX)


def _clocks(together: _Together) -> Ints:
    """Returns the clock of each instruction: a run and a transfer are one later than what is before them.

    Other instructions have the clock of what is before them on their rank.
    """
    rank_of, is_run = together.rank_of, together.every.is_kind("run")
    through = np.cumsum(is_run, dtype=np.int64)
    before = through - is_run
    sides = np.sort(np.concatenate([together.sends, together.receives]))
    first: Ints = before[np.searchsorted(rank_of, rank_of)]
    if not len(sides):
        return through - first
    follows = np.zeros(len(sides), dtype=bool)
    follows[1:] = rank_of[sides[1:]] == rank_of[sides[:-1]]
    gaps: Ints = before[sides] - np.where(follows, np.roll(before[sides], 1), first[sides])
    times = _transfer_clocks(together, sides, follows, gaps)
    last = np.searchsorted(sides, np.arange(len(rank_of)), side="right") - 1
    is_behind: Bools = (last >= 0) & (rank_of[sides[last]] == rank_of)
    found: Ints = through + np.where(is_behind, times[last] - before[sides[last]], -first)
    return found


def _transfer_clocks(together: _Together, sides: Ints, follows: Bools, gaps: Ints) -> Ints:
    """Returns the clock of each side of a transfer, by where it is in `sides`.

    Args:
        together: the lists.
        sides: the places of sends and receives, ascending.
        follows: whether the side before is on the same rank.
        gaps: the runs on a side's rank since the side before.
    """
    count = len(together.sends)
    transfer_of = np.empty(len(sides), dtype=np.int64)
    ends = [np.searchsorted(sides, places) for places in (together.sends, together.receives)]
    for own in ends:
        transfer_of[own] = np.arange(count)
    transfers, gap, has_next = transfer_of.tolist(), gaps.tolist(), [*follows.tolist()[1:], False]
    start, waits = [0] * count, [2] * count
    times, pair = [0] * len(sides), list(zip(ends[0].tolist(), ends[1].tolist(), strict=True))
    ready = [side for side in range(len(sides)) if not follows[side]]
    for side in ready:
        start[transfers[side]] = max(start[transfers[side]], gap[side])
    while ready:
        one = transfers[ready.pop()]
        waits[one] -= 1
        if waits[one]:
            continue
        now = start[one] + 1
        for side in pair[one]:
            times[side] = now
            if has_next[side]:
                later = transfers[side + 1]
                start[later] = max(start[later], now + gap[side + 1])
                ready.append(side + 1)
    if any(waits):
        raise _deadlock(together, np.flatnonzero(np.array(waits)[transfer_of]), sides)
    return np.array(times)


def _deadlock(together: _Together, left: Ints, sides: Ints) -> RhinoError:
    """Names for each rank that waits the transfer that it waits in, and with which rank."""
    rank_of, every = together.rank_of, together.every
    places = sides[left]
    ranks, first = np.unique(rank_of[places], return_index=True)
    far = dict(zip(together.sends.tolist(), together.receives.tolist(), strict=True))
    far |= {receive: send for send, receive in far.items()}
    notes = []
    for rank, place in zip(ranks.tolist(), places[first].tolist(), strict=True):
        uid, other = int(every.numbers[every.starts[place] + 1]), int(rank_of[far[place]])
        notes.append(f"rank {rank} waits in transfer {uid} for rank {other}")
    return RhinoError("RHI-STEP-010", "the ranks wait for each other", notes=tuple(notes), fix=_FIX)
