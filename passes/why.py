"""Why a plan is as it is: the same search again, with some tensors held elsewhere, or under one more pin.

A plan does not hold its program, so both take the module that it was made of.

Errors    RHI-PLAN-004 the plan is of another program; RHI-PIN-002 a name speaks of nothing that is there; and what the search raises.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rhino.ir.constraints import parse_pin
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir import ir
from rhino.ir.patterns import dotted, matches, nearest
from rhino.ir.plan_diff import diff_text
from rhino.ir.plan_text import more, signed_bytes, signed_seconds, table
from rhino.ir.spmd_plan import SpmdPlan, Tensor, folded
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.base import Remarks
from rhino.passes.choose_shardings import LEVELS
from rhino.passes.plan_costs import PlanCosts
from rhino.passes.spmd_search import Found, Whole, digest, search
from rhino.strategies.candidates import State, strategy_name
from rhino.strategies.forced import Alternative, Alternatives
from rhino.strategies.nodes import Node

MOST_SUBJECTS: Final = 8
"""How many tensors or ops that are not alike a question is answered for."""

ROUNDING: Final = 1e-7
"""The share of a step below which a difference is one of rounding."""

NOTABLE: Final = 5
"""How many arguments, and how many ops, a report has reasons for."""

_CANNOT_BE: Final = ("RHI-SHARD-001", "RHI-SOLVE-001", "RHI-SOLVE-002")
_SHAPE: Final = re.compile(r".*\[(.*)\]")
_RESULT, _PLACE = "result:", "loc:"


@dataclass(frozen=True, slots=True)
class Subject:
    """Tensors or ops that are alike, and were decided alike: nodes of the problem, by what they are called and are."""

    name: str
    what: str
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A way in which a subject could be, in words; `alternative` is what changes then."""

    how: str
    alternative: Alternative


@dataclass(frozen=True, slots=True)
class Why:
    """What was chosen for a subject, and what else there is, what adds least first. `num_bytes` are on a device, of arguments alone."""

    subject: Subject
    chosen: str
    num_bytes: int | None
    options: tuple[Option, ...]


def again(module: ir.Module, plan: SpmdPlan, pins: Sequence[str] = ()) -> Found:
    """Returns what the search finds for the program of `plan`, asked as it was then, and to keep to `pins`; annotates `module` with it."""
    if digest(module) != plan.source.sha256:
        what = f"the plan was made for another program than this: {plan.source.function}"
        notes = (f"the program's hash is {digest(module)[:12]}..., and the plan's {plan.source.sha256[:12]}...",)
        fix = "give what rhino-opt was given, or what Plan.save_program wrote"
        raise RhinoError("RHI-PLAN-004", what, Place(plan.source.function), notes, fix)
    asked = dict(plan.asked)
    asked["pin"] = "; ".join(filter(None, (asked.get("pin", ""), *pins)))
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as cluster:
        cluster.write("\n".join(plan.cluster))
        cluster.flush()
        mesh = ",".join(f"{name}={size}" for name, size in plan.mesh)
        budget = max(1, plan.predicted.budget_bytes - plan.predicted.kept_bytes)
        options = {**asked, "cluster": cluster.name, "mesh": mesh, "budget": str(budget)}
        whole: Whole = {"arg": _held(plan.arguments), "res": _held(plan.results)}
        given = {name: text for name, text in options.items() if text}
        found = search(module, plan.source.function, given, Remarks(plan.source.function), whole)
    return replace(found, plan=_in_words_of(plan, found.plan))


def why_not_text(module: ir.Module, plan: SpmdPlan, pin: str) -> str:
    """Returns what would be different if `pin` held too, and what that costs; or why it cannot be. Raises RHI-PIN-002, RHI-PLAN-004."""
    parse_pin(pin)
    try:
        other = again(module, plan, (pin,)).plan
    except RhinoError as error:
        if error.id not in _CANNOT_BE:
            raise
        return "\n".join([f"{pin} cannot be: {error.what}", *(f"  {note}" for note in error.notes)])
    found = diff_text(replace(plan, asked=other.asked), other)
    return f"with {pin}:\n{found}" if found else f"with {pin} nothing changes: it is so already"


def why_text(module: ir.Module, plan: SpmdPlan, name: str) -> str:
    """Returns what was chosen for what `name` speaks of, and what each alternative would add."""
    found = again(module, plan)
    every = reasons(found, plan, name)
    return "\n".join([line for one in every[:MOST_SUBJECTS] for line in _lines(one, plan)] + more(len(every), MOST_SUBJECTS))


def reasons(found: Found, plan: SpmdPlan, name: str) -> list[Why]:
    """Returns why what `name` speaks of is as it is, the costliest first; of what comes behind the first few, no options are looked at."""
    subjects = sorted(_meant(found, name), key=lambda one: -_seconds(found, one))
    return [*_answered(found, plan, subjects[:MOST_SUBJECTS]), *(_why(found, one, []) for one in subjects[MOST_SUBJECTS:])]


def notable_reasons(module: ir.Module, plan: SpmdPlan) -> list[Why]:
    """Returns why the arguments that take most memory, and the ops that take most time, are as they are."""
    found = again(module, plan)
    costs, nodes = found.costs, list(enumerate(found.costs.choice.nodes))
    arguments = _grouped(found, [number for number, node in nodes if node.kind == "argument"])
    ops = _grouped(found, [number for number, node in nodes if node.kind == "op"])
    largest = sorted(arguments, key=lambda one: -sum(costs.local_bytes(costs.choice.nodes[node].number) for node in one.nodes))
    longest = sorted(ops, key=lambda one: -_seconds(found, one))
    return _answered(found, plan, (*largest[:NOTABLE], *longest[:NOTABLE]))


def _answered(found: Found, plan: SpmdPlan, subjects: Sequence[Subject]) -> list[Why]:
    """Returns why subjects are as they are, and what else each could be."""
    budget = max(1, plan.predicted.budget_bytes - plan.predicted.kept_bytes)
    limits = LEVELS[int(plan.asked.get("level", max(LEVELS)))]
    alternatives = Alternatives(found.costs.choice.problem, limits, found.answer, budget, found.solver)
    left = range(len(subjects), 0, -1)
    return [_why(found, one, alternatives.of(one.nodes, count)) for one, count in zip(subjects, left, strict=True)]


def _seconds(found: Found, subject: Subject) -> float:
    """Returns what the nodes of a subject take by themselves, in a step."""
    problem, nodes = found.costs.choice.problem, np.array(subject.nodes)
    return float(problem.node_entries(problem.node_table[nodes], nodes, found.answer.states).sum())


def _why(found: Found, subject: Subject, alternatives: Sequence[Alternative]) -> Why:
    costs, first = found.costs, subject.nodes[0]
    node = costs.choice.nodes[first]
    chosen = _how(costs, node, node.states[int(found.answer.states[first])])
    options: dict[str, Option] = {}
    for one in alternatives:
        how = _how(costs, node, node.states[one.state])
        options.setdefault(how, Option(how, one))  # ways that read alike differ inside alone, and the first adds least
    options.pop(chosen, None)
    of_tensor = found.plan.arguments[node.number].num_bytes if node.kind == "argument" else None
    local = of_tensor and costs.local_bytes(node.number)
    return Why(subject, chosen, local, tuple(options.values()))


def _how(costs: PlanCosts, node: Node, state: State) -> str:
    if node.kind != "op":
        return costs.how_stored(node, state)
    return f"{costs.how(node.number, state)}  ({strategy_name(costs.plan.graph.cls(node.number), state.strategy)})"


def _lines(one: Why, plan: SpmdPlan) -> list[str]:
    count = f" ({len(one.subject.nodes)} of them, together)" if len(one.subject.nodes) > 1 else ""
    size = "" if one.num_bytes is None else f", {format_bytes(one.num_bytes)} on a device each"
    lines = [f"{one.subject.name}{count}, {one.subject.what}", f"  chosen: {one.chosen}{size}"]
    sent = [cost for cost in plan.costs if one.subject.name in (cost.tensor, cost.reader)]
    lines += [f"  sent:   {format_seconds(cost.seconds)}, {cost.count} x {cost.kind} of {cost.place}" for cost in sent[:MOST_SUBJECTS]]
    rows = [(*added(option.alternative, plan.predicted.step_s), option.how) for option in one.options]
    head = ("step", "compute", "collectives", "peak", "known", "instead")
    return [*lines, *(table([head, *rows]) if rows else ["  nothing else is possible"])]


def added(one: Alternative, step_s: float) -> tuple[str, str, str, str, str]:
    """Returns what an alternative adds to the step, its compute, its collectives and the peak, and how that is known."""
    if one.parts is None:
        return "-", "-", "-", "-", one.why
    times = (one.parts.step_s, one.parts.compute_s, one.parts.collectives_s)
    shown = [signed_seconds(seconds if abs(seconds) > ROUNDING * step_s else 0.0) for seconds in times]
    known = "exact"
    if one.at_least_s < one.parts.step_s:
        known = f"at least {signed_seconds(one.at_least_s)}" if one.at_least_s > ROUNDING * step_s else "at most"
    return shown[0], shown[1], shown[2], signed_bytes(one.parts.peak_bytes), known


def _meant(searched: Found, name: str) -> list[Subject]:
    """Returns what a name speaks of, in the order of the program: arguments, results, or ops by scope or source line."""
    named = [(number, node, names) for number, node in enumerate(searched.costs.choice.nodes) if (names := _names(searched, node))]
    pattern, scopes = name.removeprefix(_RESULT).removeprefix(_PLACE), ("op", "value")
    kinds = [("return",)] if name.startswith(_RESULT) else [scopes] if name.startswith(_PLACE) else [("argument",), ("return",), scopes]
    for some in kinds:
        found = [number for number, node, names in named if node.kind in some and _is_meant(pattern, node, names)]
        if found:
            return _grouped(searched, found)
    close = nearest(dotted(pattern), (names[0] for _, node, names in named if node.kind in kinds[0]), "/" if kinds == [scopes] else ".")
    fix = f"did you mean {' or '.join(close)}?" if close else "docs/explain.md says what a name is"
    raise RhinoError("RHI-PIN-002", f"{name} matches no tensor and no op", fix=fix)


def _grouped(searched: Found, nodes: Sequence[int]) -> list[Subject]:
    """Returns nodes in groups of those that are alike, and were decided alike."""
    costs = searched.costs
    groups: dict[tuple[str, str, str, object, int], list[int]] = {}
    for number in nodes:
        node = costs.choice.nodes[number]
        key = (node.kind, folded(_names(searched, node)[-1]), _what(costs, node), node.states, int(costs.states[number]))
        groups.setdefault(key, []).append(number)
    return [
        Subject(shown if len(ones) > 1 else _names(searched, costs.choice.nodes[ones[0]])[-1], what, tuple(ones))
        for (_, shown, what, _, _), ones in groups.items()
    ]


def _names(searched: Found, node: Node) -> tuple[str, ...]:
    """Returns what a node goes by; the last name is the one that is shown."""
    costs, graph = searched.costs, searched.costs.plan.graph
    match node.kind:
        case "argument":
            name = graph.arguments[node.number].name
            return dotted(name), name
        case "return":
            path = searched.plan.results[node.number].path
            return str(node.number), dotted(path), path, f"result {node.number}"
    op = node.number if node.kind == "op" else int(graph.value_op[node.number])
    if op < 0:
        return ()
    scope, line = costs.named(op)
    return f"{scope}:{costs.program.ops[op].name.rpartition('.')[2]}", line, scope


def _is_meant(pattern: str, node: Node, names: Iterable[str]) -> bool:
    by_path = node.kind in ("argument", "return")
    wanted, separator = (dotted(pattern), ".") if by_path else (pattern, "/")
    return any(matches(wanted, name, separator) for name in names if name)


def _what(costs: PlanCosts, node: Node) -> str:
    if node.kind == "op":
        _, line = costs.named(node.number)
        kind = costs.program.ops[node.number].name.rpartition(".")[2]
        return " at ".join(filter(None, (f"{kind} {costs.type_of(node)}".strip(), line)))
    return f"{'stored result' if node.kind == 'value' else node.kind} {costs.type_of(node)}"


def _held(tensors: Sequence[Tensor]) -> dict[int, int]:
    """Returns of typed keys, by number, how many dims they have behind their own: these stay whole."""
    ranks = [len(shape[1].split(",")) if (shape := _SHAPE.fullmatch(one.kind)) and shape[1] else 0 for one in tensors]
    return {n: len(one.dims) - rank for n, (one, rank) in enumerate(zip(tensors, ranks, strict=True)) if len(one.dims) > rank}


def _in_words_of(plan: SpmdPlan, other: SpmdPlan) -> SpmdPlan:
    """Returns another plan of the same program with arguments and results called as in `plan`."""
    sides = [
        tuple(replace(old, dims=new.dims) for old, new in zip(before, after, strict=True))
        for before, after in ((plan.arguments, other.arguments), (plan.results, other.results))
    ]
    return replace(other, arguments=sides[0], results=sides[1], form=plan.form, versions=plan.versions, source=plan.source)
