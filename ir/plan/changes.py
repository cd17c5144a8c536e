"""Whether a plan that was kept is still of the program and the cluster, and if not what has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import unified_diff
from itertools import islice
from typing import Final

from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.leaves import leaf_tensors
from rhino.ir.plan.plan import Plan, Source, Tensor, common_name, folded

_SHOWN: Final = 8
_FIX: Final = "plan again without it, and save the new plan"


def check_current(
    plan: Plan, source: Source, tensors: tuple[Sequence[Tensor], Sequence[Tensor]], cluster: Sequence[str] | None
) -> None:
    """Raises RHI-PLAN-004 unless `plan` is of the program behind `source` and of a cluster file of lines `cluster`."""
    if cluster is not None and tuple(cluster) != plan.cluster:
        lines = (
            line
            for line in unified_diff(plan.cluster, cluster, "plan", "now", n=0, lineterm="")
            if not line.startswith("@@")
        )
        raise _stale(f"the plan of {plan.source.function} was made for another cluster", islice(lines, 2, None))
    arguments, results = leaf_tensors(plan.arguments, plan.results)
    plan = replace(plan, arguments=arguments, results=results)
    if source.normal_sha256 == plan.source.normal_sha256:
        is_same = True  # As it was traced it may differ: JAX numbers functions by what it has traced before.
    else:
        is_same = source.sha256 == plan.source.sha256 and not plan.source.normal_sha256
    if is_same:
        _check_donation(plan, source, tensors[0])
        return
    if source.sha256 != plan.source.sha256:
        raise _stale(
            f"the plan was made for another program than {source.function}", _differences(plan, source, tensors)
        )
    why = "the program is the same, but this version of Rhino normalizes it in another way"
    raise _stale(f"the plan of {source.function} was made by another version of Rhino", iter((why,)))


def donation_changes(then: Sequence[Tensor], now: Sequence[Tensor]) -> list[tuple[str, str, str]]:
    """Returns which arguments are donated in one plan alone: their common name, and what they are in each."""
    own, found = {one.path: one for one in now}, dict[tuple[str, bool], list[str]]()
    for one in then:
        other = own.get(one.path)
        if other is not None and None not in (one.alias, other.alias) and one.is_kept != other.is_kept:
            found.setdefault((folded(one.path), one.is_kept), []).append(one.path)
    words = ("donated", "not donated")
    return [(common_name(paths), words[is_kept], words[not is_kept]) for (_, is_kept), paths in found.items()]


def _check_donation(plan: Plan, source: Source, arguments: Sequence[Tensor]) -> None:
    """Raises RHI-PLAN-004 where an argument is donated that the plan does not count on, or the other way about."""
    found = donation_changes(plan.arguments, arguments)
    if found:
        what = f"the plan of {source.function} was made for other donated arguments"
        fix = "donate what the plan says (donate_argnums), or plan again without it, and save the new plan"
        lines = (f"argument {name} was {then}, and is {now}" for name, then, now in found)
        raise replace(_stale(what, lines), fix=fix)


def _differences(plan: Plan, source: Source, tensors: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Iterator[str]:
    for side, then, now in zip(("argument", "result"), (plan.arguments, plan.results), tensors, strict=True):
        yield from _changed(side, {one.path: one.kind for one in then}, {one.path: one.kind for one in now})
    if plan.source.ops:
        yield from _changed("ops of kind", _words(plan.source.ops), _words(source.ops))
    yield from _alias_changes(plan, tensors[0])
    for name, old, new in donation_changes(plan.arguments, tensors[0]):
        yield f"argument {name} was {old}, and is {new}"


def _changed(what: str, then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {**then, **now}:
        if name not in now:
            yield f"{what} {name} ({then[name]}) is gone"
        elif name not in then:
            yield f"{what} {name} ({now[name]}) is new"
        elif then[name] != now[name]:
            yield f"{what} {name} was {then[name]}, and is {now[name]}"


def _alias_changes(plan: Plan, arguments: Sequence[Tensor]) -> Iterator[str]:
    then = {one.path: one.alias for one in plan.arguments}
    for one in arguments:
        if one.path in then and then[one.path] != one.alias:
            yield f"argument {one.path} came back as result {then[one.path]}, and comes back as {one.alias}"


def _words(counts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{count} times" for name, count in counts.items()}


def _stale(what: str, found: Iterator[str]) -> RhinoError:
    notes = list(found)
    if not notes:
        same = "arguments, results and how often each kind of op is there are the same"
        notes = [f"{same}: scopes, constants, or how ops follow, differ"]
    more = [f"and {len(notes) - _SHOWN} more"] if len(notes) > _SHOWN else []
    return RhinoError("RHI-PLAN-004", what, notes=(*notes[:_SHOWN], *more), fix=_FIX)
