"""Why a plan is as it is: the same search again, with some tensors sharded otherwise, or under one more pin.

A plan does not hold the module that it was made of, so both take it. Questions are asked of a choice that was made
again (`Replanned`); of a plan in stages `rhino.passes.planner.stage_reasons` says where its nodes are, too. What is
sharded otherwise there adds work to its rank, in all micro-batches, and memory to all ranks together; how far that
delays the step, the schedule decides.

Errors    RHI-PLAN-004 the plan is of another program; RHI-PIN-002 a name speaks of nothing that is there; and what the
          search raises.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.placement import placed_name
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.manual import bytecode
from rhino.ir.plan.plan import Cost, Plan, common_name, folded, key_dims, meshes_text
from rhino.ir.request.constraints import parse_pin
from rhino.ir.request.patterns import RESULT, dotted, matches, nearest
from rhino.ir.units import PEAK, format_bytes, format_seconds, peak_text
from rhino.passes.base import Remarks
from rhino.passes.pipeline.pipeline_stages import StageCut
from rhino.passes.planner.aot import seed_of, seed_roles, write_seed
from rhino.passes.planner.diff import diff_text
from rhino.passes.planner.explain import alternatives_text
from rhino.passes.planner.module_facts import Unsplit, digest
from rhino.passes.planner.plan_costs import PlanCosts, plan_costs
from rhino.passes.planner.stage_reasons import StagePlaces
from rhino.passes.planner.staged_plan import cut_options, cut_step, make_staged_plan
from rhino.passes.planner.tables import more, signed_bytes, signed_seconds, table
from rhino.passes.planner.unstaged_plan import Found, search, search_options
from rhino.passes.sharding.choose_shardings import LEVELS, ShardingChoice
from rhino.strategies.cost.candidates import State, strategy_name
from rhino.strategies.cost.nodes import Node
from rhino.strategies.memory.peak import peak_of
from rhino.strategies.sharding.what_if import Alternative, Alternatives
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.problem import PeakOf
from rhino.strategies.solver.search import Limits
from rhino.strategies.solver.solver import Solver

MOST_SUBJECTS: Final = 8
"""How many tensors or ops that are not alike a question is answered for."""

ROUNDING: Final = 1e-7
"""The share of a step below which a difference is one of rounding."""

NOTABLE: Final = 5
"""How many arguments, and how many ops, a report has reasons for."""

PLAN: Final = "plan"
"""The name by which the plan itself is asked about."""

_CANNOT_BE: Final = (
    "RHI-SHARD-001",
    "RHI-SOLVE-001",
    "RHI-SOLVE-002",
    "RHI-STAGE-004",
    "RHI-STAGE-005",
)
_PLACE = "loc:"


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
    """What was chosen for a subject, and the alternatives, those that add least first.

    `num_bytes` are on a device, of arguments alone. `notes` are lines that explain the choice further. `step_s` is the
    duration of the whole step, for it decides which differences are too small to be shown.
    """

    subject: Subject
    chosen: str
    num_bytes: int | None
    notes: tuple[str, ...]
    step_s: float
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Replanned:
    """A choice that was made again, so that questions about it can be answered.

    `answer` is what `solver` found under `limits` and a budget, and `costs` is what that costs. `results` are the names
    of results, `peak_of` as in `Alternatives`. `place` gives the place of a node (nothing where all are in one), and
    `notes` what else there is to know of the nodes of a subject. `head` names the columns of what alternatives add.
    What `costs` knows of ops lives as long as `module`.
    """

    module: ir.Module
    costs: PlanCosts
    answer: Answer
    solver: Solver
    limits: Limits
    budget_bytes: float
    results: tuple[str, ...]
    peak_of: PeakOf | None = None
    place: Callable[[int], str] = lambda _: ""
    notes: Callable[[Sequence[int]], tuple[str, ...]] = lambda _: ()
    head: tuple[str, ...] = ("step", "compute", "collectives", PEAK)


def why_text(module: ir.Module, plan: Plan, name: str) -> str:
    """Returns what was chosen for what `name` refers to, and what each alternative would add.

    For the name of the plan as a whole, it returns the plans that lost against it.
    """
    if name == PLAN:
        return "\n".join(alternatives_text(plan)) or "nothing else was looked at"
    found = reasons_text(replanned(module, plan), name)
    expert = plan.compared.best.seed if plan.compared else ""
    words = f"the compiler chose the expert's plan {expert}: arguments lie as that says, the rest was searched for"
    return f"{found}\n{words}" if expert else found


def notable_reasons(module: ir.Module, plan: Plan) -> list[Why]:
    """Returns why the arguments that take most memory, and the ops that take most time, are as they are.

    Of ranks with unlike meshes it is not told.
    """
    return notable(replanned(module, plan)) if len(set(plan.meshes)) == 1 else []


def why_not_text(module: ir.Module, plan: Plan, pin: str) -> str:
    """Returns what `pin`, as one more constraint, would change, and what that costs; or why it is impossible.

    A plan in stages keeps its stages and micro-batches. Raises RHI-PIN-002, RHI-PLAN-004.
    """
    parse_pin(pin)
    try:
        other = _staged_again(module, plan, pin) if plan.execution else again(module, plan, (pin,)).plan
    except RhinoError as error:
        if error.id not in _CANNOT_BE:
            raise
        return "\n".join([f"{pin} cannot be: {error.what}", *(f"  {note}" for note in error.notes)])
    found = diff_text(replace(plan, options=other.options), other)
    peak, budget = other.predicted.largest_peak_bytes, plan.predicted.budget_bytes
    fits = "" if peak <= budget else f", which is not predicted to fit: {peak_text(peak, budget)}"
    return f"with {pin}{fits}:\n{found}" if found else f"with {pin} nothing changes: it is so already"


MORE_MEMORY: Final = 0.05
"""The share of the budget by which `more_memory_text` asks for more."""


def more_memory_text(module: ir.Module, plan: Plan) -> str:
    """Returns what a little more memory would be worth to a plan in one program.

    Raises RHI-PLAN-004.
    """
    budget = round(plan.predicted.budget_bytes * (1 + MORE_MEMORY))
    other = again(module, replace(plan, predicted=replace(plan.predicted, budget_bytes=budget))).plan.predicted
    saved = 1 - other.step_s / plan.predicted.step_s
    what = f"with {MORE_MEMORY:.0%} more memory, {format_bytes(budget)} per device, the step takes"
    return f"{what} {format_seconds(other.step_s)}, {max(saved, 0.0):.1%} less"


def again(module: ir.Module, plan: Plan, pins: Sequence[str] = ()) -> Found:
    """Returns what the same search finds for the one program of `plan`, with `pins` as more constraints.

    It annotates `module`. Where an expert's plan was completed, what that says holds but for the arguments of `pins`.
    """
    _check_program(module, plan)
    with _cluster_file(plan) as cluster:
        options = {**search_options(plan, cluster), "pin": _pins_of(plan.options, pins)}
        given = {name: text for name, text in options.items() if text}
        if plan.compared and (expert := plan.compared.best.seed):
            copy = ir.Module.parse(bytecode(module), module.context)
            seed = seed_of(copy, expert, given, plan.mesh)
            device, but = load_cluster(cluster).device, [dotted(parse_pin(pin).pattern) for pin in pins]
            write_seed(module, seed, plan.mesh, device, but)
            given |= seed_roles(seed, plan.mesh, given)
        found = search(module, plan.source.function, given, Remarks(plan.source.function), _unsplit(plan))
    return replace(found, plan=_named_as(plan, found.plan))


def _staged_again(module: ir.Module, plan: Plan, pin: str) -> Plan:
    """Returns the plan in as many stages and micro-batches that keeps to a pin, too."""
    _check_program(module, plan)
    with _cluster_file(plan) as cluster:
        options = {**cut_options(plan, cluster), "pin": _pins_of(plan.options, (pin,))}
        cut_step(module, plan.source.function, options, Remarks(plan.source.function), _unsplit(plan))
        made = make_staged_plan(module, plan.source, cluster, plan.predicted.budget_bytes, options)
    return _named_as(plan, made.plan)


def replanned(module: ir.Module, plan: Plan) -> Replanned:
    """Returns what the search for `plan`, made again, can be asked.

    Raises:
        RhinoError: RHI-PLAN-004 where the program is another, RHI-STAGE-007 where ranks have unlike meshes.
    """
    if len(set(plan.meshes)) > 1:
        what = f"ranks have unlike {meshes_text(plan.meshes)}, and what else was possible is told of alike ranks alone"
        raise RhinoError("RHI-STAGE-007", what, fix="ask --why=plan, or --why-not with the sharding in question")
    limits = LEVELS[int(plan.options.get("level", max(LEVELS)))]
    results = tuple(one.path for one in plan.results)
    if plan.execution is None:
        found = again(module, plan)
        budget = found.plan.predicted.budget_bytes
        return Replanned(
            found.module, found.costs, found.answer, found.solver, limits, budget, results, peak_of(found.costs.choice)
        )
    _check_program(module, plan)
    remarks = Remarks(plan.source.function)
    with _cluster_file(plan) as cluster:
        cut_step(module, remarks.file, cut_options(plan, cluster), remarks, _unsplit(plan), is_split=False)
    chosen, cut = remarks.result(ShardingChoice), remarks.find(StageCut)
    costs = plan_costs(chosen)
    if cut is None:  # of replicas, which are searched for as one program is
        peak = peak_of(costs.choice)
        return Replanned(module, costs, chosen.answer, chosen.solver, limits, chosen.budget_bytes, results, peak)
    places = StagePlaces(plan, costs, cut.staging, cut.answer)
    head = ("work", "compute", "collectives", "memory")
    answer, solver, budget_bytes = chosen.answer, chosen.solver, chosen.budget_bytes
    return Replanned(module, costs, answer, solver, limits, budget_bytes, results, None, places.of, places.notes, head)


def _check_program(module: ir.Module, plan: Plan) -> None:
    """Raises RHI-PLAN-004 where a plan is asked about another program than it was made for."""
    found, function = digest(module), plan.source.function
    if found != plan.source.sha256:
        what = f"the plan was made for another program than this: {function}"
        notes = (f"the program's hash is {found[:12]}..., and the plan's {plan.source.sha256[:12]}...",)
        fix = "give what rhino-opt was given, or what save_program wrote"
        raise RhinoError("RHI-PLAN-004", what, Place(function), notes, fix)


@contextmanager
def _cluster_file(plan: Plan) -> Iterator[str]:
    """Gives the name of a file of a plan's cluster, with the order of its devices, while it is entered."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write("\n".join(plan.cluster))
        file.flush()
        yield placed_name(file.name, plan.machine().order)


def _pins_of(options: Mapping[str, str], pins: Sequence[str]) -> str:
    """Returns the pins thatwere requested, and more."""
    return "; ".join(filter(None, (options.get("pin", ""), *pins)))


def _unsplit(plan: Plan) -> Unsplit:
    """Returns the dims of typed keys' words, which must not be split."""
    return {"arg": key_dims(plan.arguments), "res": key_dims(plan.results)}


def reasons_text(replanned: Replanned, name: str) -> str:
    """Returns why what `name` speaks of is as it is."""
    every = reasons(replanned, name)
    return "\n".join(
        [line for one in every[:MOST_SUBJECTS] for line in _lines(replanned, one)] + more(len(every), MOST_SUBJECTS)
    )


def reasons(replanned: Replanned, name: str) -> list[Why]:
    """Returns the reasons for the choice of what `name` refers to, the costliest subject first.

    Alternatives are evaluated for the first few subjects alone.
    """
    subjects = sorted(_meant(replanned, name), key=lambda one: -_seconds(replanned, one))
    return [
        *_answered(replanned, subjects[:MOST_SUBJECTS]),
        *(_why(replanned, one, []) for one in subjects[MOST_SUBJECTS:]),
    ]


def notable(replanned: Replanned) -> list[Why]:
    """Returns the reasons for the arguments that take most memory, and for the ops that take most time."""
    costs, nodes = replanned.costs, list(enumerate(replanned.costs.choice.nodes))
    arguments = _grouped(replanned, [number for number, node in nodes if node.kind == "argument"])
    ops = _grouped(replanned, [number for number, node in nodes if node.kind == "op"])
    largest = sorted(
        arguments, key=lambda one: -sum(costs.local_bytes(costs.choice.nodes[node].number) for node in one.nodes)
    )
    longest = sorted(ops, key=lambda one: -_seconds(replanned, one))
    return _answered(replanned, (*largest[:NOTABLE], *longest[:NOTABLE]))


def _answered(replanned: Replanned, subjects: Sequence[Subject]) -> list[Why]:
    """Returns why subjects are as they are, and what else each could be."""
    if all(len(node.states) == 1 for node in replanned.costs.choice.nodes):
        return [_why(replanned, one, []) for one in subjects]
    alternatives = Alternatives(
        replanned.costs.choice.with_memory().problem,
        replanned.limits,
        replanned.answer,
        replanned.budget_bytes,
        replanned.solver,
        replanned.peak_of,
    )
    left = range(len(subjects), 0, -1)
    return [_why(replanned, one, alternatives.of(one.nodes, count)) for one, count in zip(subjects, left, strict=True)]


def _seconds(replanned: Replanned, subject: Subject) -> float:
    """Returns what the nodes of a subject take by themselves, in a step."""
    problem, nodes = replanned.costs.choice.problem, np.array(subject.nodes)
    return float(problem.node_entries(problem.node_table[nodes], nodes, replanned.answer.states).sum())


def _why(replanned: Replanned, subject: Subject, alternatives: Sequence[Alternative]) -> Why:
    costs, first = replanned.costs, subject.nodes[0]
    node = costs.choice.nodes[first]
    chosen = _how(costs, node, node.states[int(replanned.answer.states[first])])
    options: dict[str, Option] = {}
    for one in alternatives:
        how = _how(costs, node, node.states[one.state])
        options.setdefault(how, Option(how, one))  # ways that read alike differ inside alone, and the first adds least
    options.pop(chosen, None)
    local = costs.local_bytes(node.number) if node.kind == "argument" else None
    return Why(subject, chosen, local, replanned.notes(subject.nodes), replanned.answer.cost, tuple(options.values()))


def _how(costs: PlanCosts, node: Node, state: State) -> str:
    if node.kind != "op":
        return costs.how_stored(node, state)
    return f"{costs.how(node.number, state)}  ({strategy_name(costs.plan.graph.cls(node.number), state.strategy)})"


def _lines(replanned: Replanned, one: Why) -> list[str]:
    count = f" ({len(one.subject.nodes)} of them, together)" if len(one.subject.nodes) > 1 else ""
    size = "" if one.num_bytes is None else f", {format_bytes(one.num_bytes)} on a device each"
    lines = [
        f"{one.subject.name}{count}, {one.subject.what}",
        f"  chosen: {one.chosen}{size}",
        *(f"  {note}" for note in one.notes),
    ]
    sent = [cost for cost in replanned.costs.costs() if _is_sent(cost, one.subject.name)]
    lines += [
        f"  sent:   {format_seconds(cost.seconds)}, {cost.count} x {cost.kind} of {cost.place}"
        for cost in sent[:MOST_SUBJECTS]
    ]
    rows = [(*added(option.alternative, one.step_s), option.how) for option in one.options]
    return [
        *lines,
        *(table([(*replanned.head, "known", "instead"), *rows]) if rows else ["  nothing else is possible"]),
    ]


def _is_sent(cost: Cost, name: str) -> bool:
    return any(name in (one, folded(one)) for one in (cost.tensor, cost.reader))


def added(one: Alternative, step_s: float) -> tuple[str, str, str, str, str]:
    """Returns what an alternative adds to the step, its compute, its collectives and the peak, and how exact it is."""
    if one.parts is None:
        return "-", "-", "-", "-", one.why
    times = (one.parts.step_s, one.parts.compute_s, one.parts.collectives_s)
    shown = [signed_seconds(seconds if abs(seconds) > ROUNDING * step_s else 0.0) for seconds in times]
    known = "exact"
    if one.at_least_s < one.parts.step_s:
        known = f"at least {signed_seconds(one.at_least_s)}" if one.at_least_s > ROUNDING * step_s else "at most"
    peak = signed_bytes(one.parts.peak_bytes)
    return shown[0], shown[1], shown[2], peak if one.is_peak_exact else f"about {peak}", known


def _meant(replanned: Replanned, name: str) -> list[Subject]:
    """Returns the subjects that a name refers to, in the order of the program.

    They are arguments, results, or ops by scope or source line.
    """
    nodes = replanned.costs.choice.nodes
    pattern, scopes = name.removeprefix(RESULT).removeprefix(_PLACE), ("op", "value")
    arguments = [
        (number, node.kind, _names(replanned, node)) for number, node in enumerate(nodes) if node.kind == "argument"
    ]
    ops = [
        (number, node.kind, names)
        for number, node in enumerate(nodes)
        if node.kind in scopes and (names := _names(replanned, node))
    ]
    results = [
        (number, "return", names) for number, node in enumerate(nodes) if (names := _result_names(replanned, node))
    ]
    by_number = [(number, kind, names[:1]) for number, kind, names in results]
    by_path = [(number, kind, names[1:]) for number, kind, names in results]
    sides = (
        [by_path, by_number]
        if name.startswith(RESULT)
        else [ops]
        if name.startswith(_PLACE)
        else [arguments, by_path, ops]
    )
    for some in sides:
        found = [number for number, kind, names in some if _is_meant(pattern, kind, names)]
        if found:
            return _grouped(replanned, found)
    close = nearest(dotted(pattern), (names[0] for _, _, names in sides[0]), "/" if sides == [ops] else ".")
    fix = f"did you mean {' or '.join(close)}?" if close else "docs/explain.md says what a name is"
    raise RhinoError("RHI-PIN-002", f"{name} matches no tensor and no op", fix=fix)


def _grouped(replanned: Replanned, nodes: Sequence[int]) -> list[Subject]:
    """Returns nodes in groups of those that are alike, and were decided alike."""
    costs = replanned.costs
    groups: dict[tuple[str, str, str, object, int], list[int]] = {}
    for number in nodes:
        node = costs.choice.nodes[number]
        what = " on ".join(filter(None, (_what(costs, node), replanned.place(number))))
        key = (node.kind, folded(_names(replanned, node)[-1]), what, node.states, int(costs.states[number]))
        groups.setdefault(key, []).append(number)
    return [
        Subject(common_name([_names(replanned, costs.choice.nodes[one])[-1] for one in ones]), what, tuple(ones))
        for (_, _, what, _, _), ones in groups.items()
    ]


def _names(replanned: Replanned, node: Node) -> tuple[str, ...]:
    """Returns what a node goes by; the last name is the one that is shown."""
    costs, graph = replanned.costs, replanned.costs.plan.graph
    match node.kind:
        case "argument":
            name = graph.arguments[node.number].name
            return dotted(name), name
        case "return":
            return _result_names(replanned, node)
    op = node.number if node.kind == "op" else int(graph.value_op[node.number])
    if op < 0:
        return ()
    scope, line = costs.named(op)
    return f"{scope}:{costs.program.ops[op].name.rpartition('.')[2]}", line, scope


def _result_names(replanned: Replanned, node: Node) -> tuple[str, ...]:
    """Returns what the result goes by that a node is; an argument is the result that is its next value."""
    number = node.number if node.kind == "return" else None
    if node.kind == "argument":
        number = replanned.costs.plan.graph.arguments[node.number].alias
    if number is None:
        return ()
    path = replanned.results[number]
    return str(number), dotted(path), path, f"result {number}"


def _is_meant(pattern: str, kind: str, names: Iterable[str]) -> bool:
    by_path = kind in ("argument", "return")
    wanted, separator = (dotted(pattern), ".") if by_path else (pattern, "/")
    return any(matches(wanted, name, separator) for name in names if name)


def _what(costs: PlanCosts, node: Node) -> str:
    if node.kind == "op":
        _, line = costs.named(node.number)
        kind = costs.program.ops[node.number].name.rpartition(".")[2]
        return " at ".join(filter(None, (f"{kind} {costs.type_of(node)}".strip(), line)))
    return f"{'stored result' if node.kind == 'value' else node.kind} {costs.type_of(node)}"


def _named_as(plan: Plan, other: Plan) -> Plan:
    """Returns another plan of the same program with the names of `plan`, and the state that its caller keeps."""
    sides = [
        tuple(replace(old, dims=new.dims, rank=new.rank) for old, new in zip(before, after, strict=True))
        for before, after in ((plan.arguments, other.arguments), (plan.results, other.results))
    ]
    kept = plan.predicted.kept_bytes  # of which a search knows nothing
    predicted = replace(
        other.predicted,
        peak_bytes=tuple(peak + more for peak, more in zip(other.predicted.peak_bytes, kept, strict=True)),
        budget_bytes=plan.predicted.budget_bytes,
        kept_bytes=kept,
    )
    named = replace(other, source=plan.source, versions=plan.versions, predicted=predicted, request=plan.request)
    named = replace(named, arguments=sides[0], results=sides[1])
    if plan.sharding is None or named.sharding is None:
        return named
    return replace(named, sharding=replace(named.sharding, form=plan.sharding.form))
