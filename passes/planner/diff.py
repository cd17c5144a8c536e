"""Two plans compared: what is placed or sent differently, and what that costs, the costliest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rhino.ir.graph.elements import DTYPES
from rhino.ir.plan.changes import donation_changes
from rhino.ir.plan.instructions import Transfer
from rhino.ir.plan.pieces import sent_bytes
from rhino.ir.plan.plan import Cost, Execution, Plan, Sharding, Tensor, common_name, dims_text, folded
from rhino.ir.units import PEAK, format_bytes, format_seconds
from rhino.passes.planner.module_facts import ROW_LIMITS
from rhino.passes.planner.plan_rows import collectives_by_task, new_results, total_counts
from rhino.passes.planner.tables import differ, more, signed_bytes, signed_seconds

_SHOWN: Final = 40
"""Lines of a difference that are shown of each kind."""


_ASKED: Final = ("search", "budget", "strategy", "candidates")
"""What was asked for that the rest of a plan does not say."""


def diff_text(a: Plan, b: Plan) -> str:
    """Returns what plan `b` does differently from `a`, the costliest first; an empty text where they are the same."""
    lines = [*_made_for(a, b), *_totals(a, b), *_tensors("argument", a, b), *_tensors("result", a, b)]
    if a.sharding and b.sharding:
        lines += [*_costs(a.sharding, b.sharding), *_ops(a, b)]
    return "\n".join(lines)


def changes_of(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yields what was asked of one plan and otherwise, or not at all, of another."""
    for key in sorted({*then, *now}):
        if then.get(key) != now.get(key):
            yield f"{key}: {then.get(key, 'not asked')} -> {now.get(key, 'not asked')}"


def _made_for(a: Plan, b: Plan) -> Iterator[str]:
    if a.source.sha256 != b.source.sha256:
        yield f"made for different programs: {a.source.function} and {b.source.function}"
    if a.cluster != b.cluster:
        yield f"made for different clusters: {a.cluster_name} and {b.cluster_name}"
    if a.is_one_stage != b.is_one_stage:
        yield f"{a.form()} -> {b.form()}"
    else:
        for name, one, other in (
            ("stages", a.num_stages, b.num_stages),
            ("ranks", a.num_ranks, b.num_ranks),
            ("mesh", a.mesh_option, b.mesh_option),
            ("micro-batches", a.num_micro_batches, b.num_micro_batches),
            ("schedule", a.schedule, b.schedule),
            ("shares", a.shares, b.shares),
        ):
            if one != other:
                yield f"{name}: {one} -> {other}"
    for arguments, then, now in donation_changes(a.arguments, b.arguments):
        yield f"argument {arguments}: {then} -> {now}"
    yield from changes_of(_asked(a), _asked(b))
    yield from changes_of(_options(a), _options(b))


def _options(plan: Plan) -> dict[str, str]:
    """Returns the options of a plan's passes but limits that the search itself has set."""
    return {name: text for name, text in plan.options.items() if name not in ROW_LIMITS}


def _asked(plan: Plan) -> dict[str, str]:
    return {name: text for name, text in plan.request.words().items() if name in _ASKED}


def _totals(a: Plan, b: Plan) -> Iterator[str]:
    yield from _seconds("step", a.predicted.step_s, b.predicted.step_s)
    if a.sharding and b.sharding:
        yield from _seconds("compute", a.sharding.compute_s, b.sharding.compute_s)
        yield from _seconds("communication", a.sharding.communication_s, b.sharding.communication_s)
    then, now = a.predicted.largest_peak_bytes, b.predicted.largest_peak_bytes
    if then != now:
        yield f"{PEAK}: {format_bytes(then)} -> {format_bytes(now)} ({signed_bytes(now - then)})"
    if a.execution and b.execution:
        yield from _moved("transfers", _transferred(a.execution), _transferred(b.execution))
        yield from _moved(
            "collectives",
            *(total_counts([stats for _, stats in collectives_by_task(one)]) for one in (a.execution, b.execution)),
        )


def _seconds(words: str, then: float, now: float) -> Iterator[str]:
    if differ(then, now):
        yield f"{words}: {format_seconds(then)} -> {format_seconds(now)} ({signed_seconds(now - then)})"


def _moved(words: str, then: tuple[int, int], now: tuple[int, int]) -> Iterator[str]:
    if then != now:
        sizes = f"{format_bytes(then[1])} in {then[0]} -> {format_bytes(now[1])} in {now[0]}"
        yield f"{words}: {sizes} ({signed_bytes(now[1] - then[1])})"


def _transferred(execution: Execution) -> tuple[int, int]:
    """Returns the number of transfers in a step, and their bytes at the device that has most of each."""
    step = execution.step
    transfers = [one for one in step.instructions if isinstance(one, Transfer)]
    return len(transfers), sum(sent_bytes(step, one) for one in transfers)


def _tensors(side: str, a: Plan, b: Plan) -> Iterator[str]:
    """Yields the tensors that are placed differently, the largest first.

    Tensors whose names differ in numbers alone are one line. Results that are an argument's next value are left out:
    they are placed as the argument is.
    """
    both = [plan.arguments if side == "argument" else new_results(plan) for plan in (a, b)]
    then, now = ({one.path: one for one in tensors} for tensors in both)
    is_ranked = a.num_ranks > 1 or b.num_ranks > 1
    changed: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for path in {**then, **now}:
        old, new = then.get(path), now.get(path)
        if old is None or new is None or _lies(old) != _lies(new):
            size = max(one.num_bytes for one in (old, new) if one is not None)
            words = f"{_placement(old, is_ranked)} -> {_placement(new, is_ranked)}"
            changed.setdefault((folded(path), words), []).append((path, size))
    rows = []
    for (_, words), ones in changed.items():
        count = f" ({len(ones)} of them)" if len(ones) > 1 else ""
        name = common_name([path for path, _ in ones])
        rows.append((-sum(size for _, size in ones), f"{side} {name}: {words}{count}"))
    yield from _shown(rows)


def _costs(a: Sharding, b: Sharding) -> Iterator[str]:
    then, now = (_by_place(one.costs) for one in (a, b))
    rows = []
    for place in {**then, **now}:
        old, new = then.get(place, []), now.get(place, [])
        before_s, after_s = (sum(one.seconds for one in ones) for ones in (old, new))
        sent = _sent(old), _sent(new)
        if sent[0] != sent[1] or differ(before_s, after_s):
            names = replace(
                (old or new)[0],
                tensor=common_name([one.tensor for one in (*old, *new)]),
                reader=common_name([one.reader for one in (*old, *new)]),
            )
            words = f"{signed_seconds(after_s - before_s)} {names.kind} of {names.place}: {sent[0]} -> {sent[1]}"
            rows.append((-abs(after_s - before_s), words))
    yield from _shown(rows)


def _shown(rows: Sequence[tuple[float, str]]) -> Iterator[str]:
    """Yields the first lines by their keys, and how many there are beside."""
    yield from (line for _, line in sorted(rows)[:_SHOWN])
    yield from more(len(rows), _SHOWN)


def _by_place(costs: Sequence[Cost]) -> dict[tuple[str, str], list[Cost]]:
    found: dict[tuple[str, str], list[Cost]] = {}
    for one in costs:
        found.setdefault((one.kind, folded(one.place)), []).append(one)
    return found


def _ops(a: Plan, b: Plan) -> Iterator[str]:
    if not a.sharding or not b.sharding or a.source.normal_sha256 != b.source.normal_sha256:
        return
    one, other = a.sharding.annotations, b.sharding.annotations
    count = sum(one.words[x] != other.words[y] for x, y in zip(one.ops, other.ops, strict=False))
    if count:
        yield f"{count} of {len(one.ops)} ops run or store their results differently"


def _lies(one: Tensor) -> tuple[object, ...]:
    """Returns what a tensor is and how it lies; its dtype by JAX's name, where a plan was made of a module too."""
    return DTYPES.get(one.dtype, one.dtype), one.shape, one.viewed, one.dims, one.rank


def _placement(one: Tensor | None, is_ranked: bool) -> str:
    if one is None:
        return "not there"
    return f"{f'rank {one.rank} ' if is_ranked else ''}{one.words} {dims_text(one.dims)}"


def _sent(costs: Sequence[Cost]) -> str:
    if not costs:
        return "none"
    return f"{sum(one.count for one in costs)} of {format_bytes(sum(one.num_bytes for one in costs))} together"
