"""Two plans of SPMD programs compared: what lies differently, what is sent differently, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator

from rhino.ir.plan.spmd_plan import Cost, SpmdPlan, Tensor, dims_text, folded
from rhino.ir.plan.spmd_text import changes_of, differ, signed_bytes, signed_seconds
from rhino.ir.units import PEAK, format_bytes, format_seconds

_SHOWN = 40


def diff_text(a: SpmdPlan, b: SpmdPlan) -> str:
    """Returns what plan `b` does differently from `a`, the costliest first; an empty text where they are the same."""
    lines = [*_made_for(a, b), *_totals(a, b), *_tensors("argument", a.arguments, b.arguments), *_results(a, b), *_costs(a, b), *_ops(a, b)]
    return "\n".join(lines)


def _made_for(a: SpmdPlan, b: SpmdPlan) -> Iterator[str]:
    if a.source.sha256 != b.source.sha256:
        yield f"made for different programs: {a.source.function} and {b.source.function}"
    if a.cluster != b.cluster:
        yield f"made for different clusters: {_cluster_name(a)} and {_cluster_name(b)}"
    if a.mesh != b.mesh:
        yield f"mesh: {_mesh(a)} -> {_mesh(b)}"
    yield from changes_of(a.asked, b.asked)


def _totals(a: SpmdPlan, b: SpmdPlan) -> Iterator[str]:
    for words, name, show, signed in (
        ("step", "step_s", format_seconds, signed_seconds),
        ("compute", "compute_s", format_seconds, signed_seconds),
        ("communication", "communication_s", format_seconds, signed_seconds),
        (PEAK, "peak_bytes", format_bytes, signed_bytes),
    ):
        then, now = getattr(a.predicted, name), getattr(b.predicted, name)
        if differ(then, now):
            yield f"{words}: {show(then)} -> {show(now)} ({signed(now - then)})"


def _tensors(side: str, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Iterator[str]:
    then, now = ({one.path: one for one in tensors} for tensors in (a, b))
    sizes: dict[str, list[int]] = {}
    for path in {**then, **now}:
        old, new = then.get(path), now.get(path)
        if old is None or new is None or (old.kind, old.dims) != (new.kind, new.dims):
            size = max(one.num_bytes for one in (old, new) if one is not None)
            sizes.setdefault(f"{side} {folded(path)}: {_lies(old)} -> {_lies(new)}", []).append(size)
    lines = sorted((-sum(each), f"{words} ({len(each)} of them)" if len(each) > 1 else words) for words, each in sizes.items())
    yield from (line for _, line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield f"and {len(lines) - _SHOWN} more {side}s"


def _results(a: SpmdPlan, b: SpmdPlan) -> Iterator[str]:
    """Results that are an argument's next value lie as it does, and are left out."""
    kept = [tuple(one for n, one in enumerate(plan.results) if n not in {argument.alias for argument in plan.arguments}) for plan in (a, b)]
    yield from _tensors("result", *kept)


def _costs(a: SpmdPlan, b: SpmdPlan) -> Iterator[str]:
    then, now = (_by_place(plan.costs) for plan in (a, b))
    rows = []
    for place in {**then, **now}:
        seconds = now.get(place, (0, 0, 0.0))[2] - then.get(place, (0, 0, 0.0))[2]
        if then.get(place) != now.get(place):
            rows.append(
                (-abs(seconds), f"{signed_seconds(seconds)} {' '.join(place)}: {_sent(then.get(place))} -> {_sent(now.get(place))}")
            )
    lines = [line for _, line in sorted(rows)]
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"and {len(lines) - _SHOWN} more collectives"


def _by_place(costs: tuple[Cost, ...]) -> dict[tuple[str, str], tuple[int, int, float]]:
    found: dict[tuple[str, str], tuple[int, int, float]] = {}
    for one in costs:
        place = (one.kind, f"of {one.place}")
        count, num_bytes, seconds = found.get(place, (0, 0, 0.0))
        found[place] = (count + one.count, num_bytes + one.num_bytes, seconds + one.seconds)
    return found


def _ops(a: SpmdPlan, b: SpmdPlan) -> Iterator[str]:
    if a.source.normal_sha256 != b.source.normal_sha256:
        return
    pairs = zip(a.annotations.ops, b.annotations.ops, strict=False)
    count = sum(a.annotations.words[x] != b.annotations.words[y] for x, y in pairs)
    if count:
        yield f"{count} of {len(a.annotations.ops)} ops run or store their results differently"


def _lies(one: Tensor | None) -> str:
    return "not there" if one is None else f"{one.kind} {dims_text(one.dims)}"


def _sent(one: tuple[int, int, float] | None) -> str:
    return "none" if one is None else f"{one[0]} of {format_bytes(one[1])} together"


def _mesh(plan: SpmdPlan) -> str:
    return ",".join(f"{name}={size}" for name, size in plan.mesh)


def _cluster_name(plan: SpmdPlan) -> str:
    return next((line.partition("=")[2].strip() for line in plan.cluster if line.startswith("name")), "one without a name")
