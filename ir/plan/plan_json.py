"""A plan as JSON, and back. Rows that belong together stand one to a line, so that a diff of two files reads.

An object holds the plan but for a step's instructions and programs, which are files of their own beside it
(`rhino.ir.plan.files`); `files` has their hashes, and `sha256` is the hash of the rest of the object.

Errors    RHI-PLAN-001 not a plan, or one of another version; RHI-PLAN-002 it is not as it was written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from itertools import groupby
from typing import Any, Final, TypeVar

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.blocks import Blocks, View, are_interleaved
from rhino.ir.graph.graph import DEVICE
from rhino.ir.plan.instructions import Feed, Fetch, Run, Step
from rhino.ir.plan.json_values import (
    amount_of,
    amounts_of,
    count_of,
    counts_of,
    flag_of,
    list_of,
    memory_of,
    number_of,
    numbers_of,
    table_of,
    text_of,
    texts_of,
    words_of,
)
from rhino.ir.plan.leaves import leaf_groups
from rhino.ir.plan.plan import (
    AUTOTUNE,
    SHARD,
    Alternative,
    Annotations,
    Autotuning,
    Comparison,
    CompiledPlan,
    Cost,
    Execution,
    Memory,
    PeakTensor,
    Plan,
    Predicted,
    Request,
    Sharding,
    Source,
    Tensor,
    Waiting,
    Work,
    meshes_text,
    rows_text,
)
from rhino.ir.plan.step_json import devices_json, devices_of, meshes_json, meshes_of

FORMAT: Final = "rhino-plan"
VERSION: Final = 3
"""Of the format: 1 and 2 were folders with a manifest alone, and files of one program were of another format."""
STAGED: Final = 5
"""The version of a plan in stages: those of 3 and 4 listed each instruction."""

_OLD: Final = ("rhino-spmd-plan", 1, 2)
_FIX: Final = "make the plan again, with Plan.save, or rhino-opt --auto-shard or --auto-parallel and --plan"
_DIGEST: Final = "sha256"

_USUAL: Final[tuple[Any, ...]] = (0, None, [], False, None, [], DEVICE, [])
"""Rank, alias, padded shape, `is_kept`, rows, viewed shape, memory and interleaved blocks of most tensors.

They are left out at the end of a row.
"""

_Record = TypeVar("_Record")


def digest_of(data: bytes) -> str:
    """Returns the hash by which plans know files and programs."""
    return hashlib.sha256(data).hexdigest()


def plan_text(plan: Plan, files: Mapping[str, str]) -> str:
    """Returns the file of a plan; the same text for the same plan.

    `files` are the hashes of what stands beside it, by name.
    """
    predicted, tuned = plan.predicted, plan.autotuning
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": STAGED if plan.execution else VERSION,
        "source": {
            "function": plan.source.function,
            "sha256": plan.source.sha256,
            "normal_sha256": plan.source.normal_sha256,
            "ops": dict(plan.source.ops),
        },
        "cluster": list(plan.cluster),
        **meshes_json(plan.meshes),
        **devices_json(plan.devices),
        "stages": plan.num_stages,
        "micro_batches": plan.num_micro_batches,
        "schedule": plan.schedule,
        "shares": list(plan.shares) or None,
        "request": _request_json(plan.request),
        "options": dict(plan.options),
        "versions": dict(plan.versions),
        "predicted": {
            "step_s": predicted.step_s,
            "at_least_s": predicted.at_least_s,
            "peak_bytes": list(predicted.peak_bytes),
            "budget_bytes": predicted.budget_bytes,
            "kept_bytes": list(predicted.kept_bytes),
        },
        "arguments": [_tensor_row(one) for one in plan.arguments],
        "results": _result_rows(plan),
        "alternatives": [astuple(one) for one in plan.alternatives],
        "autotuning": {"found_by": tuned.found_by, "num_planned": dict(tuned.num_planned)} if tuned else None,
        "sharding": _sharding_json(plan.sharding) if plan.sharding else None,
        "execution": _execution_json(plan.execution) if plan.execution else None,
        "compared": _comparison_json(plan.compared) if plan.compared else None,
        "files": dict(files),
    }
    found = {name: value for name, value in data.items() if value is not None}
    return _object({**found, _DIGEST: _own_digest(found)}) + "\n"


def head_text(plan: Plan) -> str:
    """Returns a plan as a text, without what is executed."""
    return plan_text(replace(plan, execution=None), {})


def head_of(text: str) -> Plan:
    """Returns the plan that `head_text` wrote, without what is executed."""
    return plan_of(plan_data(text, "a plan's head"), None, {}, is_head=True)


def plan_data(text: str | bytes, file: str) -> dict[str, Any]:
    """Returns the object in a plan's file, as it was written. Raises RHI-PLAN-001, RHI-PLAN-002."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise no_plan(file, f"it is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise no_plan(file, "it is no JSON object")
    if data.get("format") == _OLD[0] or (data.get("format") == FORMAT and data.get("version") in _OLD[1:]):
        raise no_plan(file, f"an older Rhino wrote it, and this reads {FORMAT} version {VERSION}")
    if data.get("format") != FORMAT:
        raise no_plan(file, f"its format is not {FORMAT!r}")
    expected, form = (STAGED, "in stages") if "execution" in data else (VERSION, "in one program")
    if data.get("version") != expected:
        what = f"it is of version {data.get('version')!r}, and a plan {form} is read in version {expected}"
        raise no_plan(file, what)
    if data.get(_DIGEST) != _own_digest(data):
        what = "the plan is not as it was written: its hash is another"
        raise RhinoError("RHI-PLAN-002", what, Place(file), fix="write the plan again")
    return data


def plan_of(data: dict[str, Any], step: Step | None, modules: Mapping[str, str], *, is_head: bool = False) -> Plan:
    """Returns the plan that an object is, with the step and the modules that stand in files beside it.

    A head, by `is_head`, is without them.

    Raises:
        TypeError, ValueError, KeyError: where something is not of its kind, or does not go with the rest.
    """
    source, predicted, tuned = table_of(data["source"]), table_of(data["predicted"]), data.get("autotuning")
    arguments = tuple(map(_tensor, list_of(data["arguments"])))
    plan = Plan(
        source=Source(
            text_of(source["function"]),
            text_of(source["sha256"]),
            text_of(source["normal_sha256"]),
            counts_of(source["ops"]),
        ),
        cluster=texts_of(data["cluster"]),
        meshes=meshes_of(data),
        devices=devices_of(data),
        num_stages=count_of(data["stages"]),
        num_micro_batches=count_of(data["micro_batches"]),
        schedule=text_of(data["schedule"]),
        shares=numbers_of(data.get("shares", [])),
        options=words_of(data["options"]),
        versions=words_of(data["versions"]),
        predicted=Predicted(
            amount_of(predicted["step_s"]),
            amount_of(predicted["at_least_s"]),
            numbers_of(predicted["peak_bytes"]),
            number_of(predicted["budget_bytes"]),
            numbers_of(predicted["kept_bytes"]),
        ),
        arguments=arguments,
        results=_results(list_of(data["results"]), arguments),
        alternatives=tuple(_alternative(*list_of(row)) for row in list_of(data["alternatives"])),
        autotuning=None if tuned is None else Autotuning(text_of(tuned["found_by"]), counts_of(tuned["num_planned"])),
        sharding=_sharding(table_of(data["sharding"])) if "sharding" in data else None,
        execution=_execution(table_of(data["execution"]), step, modules) if "execution" in data else None,
        request=_request(table_of(data.get("request", {}))),
        compared=_comparison(table_of(data["compared"])) if "compared" in data else None,
    )
    if not is_head and (plan.sharding is None) == (plan.execution is None):
        raise ValueError("it says neither how ops are sharded nor what is executed, or both")
    _check(plan)
    return plan


def no_plan(file: str, why: str) -> RhinoError:
    """Returns what to say of a file that is no plan."""
    return RhinoError("RHI-PLAN-001", f"not a plan that can be read: {why}", Place(file), fix=_FIX)


def _own_digest(data: Mapping[str, Any]) -> str:
    """Returns the hash of an object without the hash that it holds of itself."""
    return digest_of(json.dumps({key: value for key, value in data.items() if key != _DIGEST}).encode())


# What was asked


def _request_json(one: Request) -> dict[str, Any]:
    """Returns what was asked for, without what was left open."""
    own = {**asdict(one), "remat": list(one.remat)}
    return {name: value for name, value in own.items() if value is not False and value not in ("", None, [])}


def _request(data: dict[str, Any]) -> Request:
    found = Request(
        search=text_of(data.get("search", SHARD)),
        mesh=text_of(data.get("mesh", "")),
        stages=_asked(data, "stages"),
        micro_batches=_asked(data, "micro_batches"),
        schedule=text_of(data.get("schedule", "")),
        remat=amounts_of(data.get("remat", [])),
        budget_bytes=number_of(data["budget_bytes"]) if "budget_bytes" in data else None,
        strategy=text_of(data.get("strategy", "")),
        candidates=_asked(data, "candidates"),
        replicas=text_of(data.get("replicas", "")),
        recomputes=flag_of(data.get("recomputes", False)),
    )
    if found.search not in (SHARD, AUTOTUNE):
        raise ValueError(f"{found.search!r} is no search")
    return found


def _asked(data: dict[str, Any], name: str) -> int | None:
    return count_of(data[name]) if name in data else None


# What a compiler made of plans


def _comparison_json(one: Comparison) -> dict[str, Any]:
    return {"compiler": one.compiler, "chosen": one.chosen, "plans": [list(astuple(plan)) for plan in one.plans]}


def _comparison(data: dict[str, Any]) -> Comparison:
    plans = tuple(_compiled_plan(*list_of(row)) for row in list_of(data["plans"]))
    found = Comparison(text_of(data["compiler"]), plans, number_of(data["chosen"]))
    if found.chosen >= len(plans):
        raise ValueError(f"plan {found.chosen} of {len(plans)} is chosen")
    return found


def _compiled_plan(*row: Any) -> CompiledPlan:  # noqa: ANN401 - as JSON has it
    name, form, predicted_s, predicted_bytes, compiled_s, compiled_bytes, why, within, seed = row
    return CompiledPlan(
        text_of(name),
        text_of(form),
        amount_of(predicted_s),
        number_of(predicted_bytes),
        None if compiled_s is None else amount_of(compiled_s),
        None if compiled_bytes is None else number_of(compiled_bytes),
        text_of(why),
        number_of(within),
        text_of(seed),
    )


# Tensors


def _tensor_row(one: Tensor) -> list[Any]:
    """Returns a row without what at its end is the same for most tensors."""
    row = [one.path, one.kind, [list(axes) for axes in one.dims], one.num_bytes]
    row += [one.rank, one.alias, list(one.padded), one.is_kept, list(one.rows) if one.rows else None, list(one.viewed)]
    row += [one.memory, [list(blocks) for blocks in one.interleaved]]
    while len(row) > 4 and row[-1] == _USUAL[len(row) - 5]:
        row.pop()
    return row


def _tensor(row: list[Any]) -> Tensor:
    path, kind, dims, num_bytes, *more = list_of(row)
    rank, alias, padded, is_kept, rows, viewed, memory, interleaved = *more, *_USUAL[len(more) :]
    return Tensor(
        text_of(path),
        text_of(kind),
        tuple(map(texts_of, list_of(dims))),
        number_of(num_bytes),
        number_of(rank),
        None if alias is None else number_of(alias),
        numbers_of(padded),
        flag_of(is_kept),
        None if rows is None else _span_of(rows),
        numbers_of(viewed),
        memory_of(memory),
        tuple(map(numbers_of, list_of(interleaved))),
    )


def _span_of(value: Any) -> tuple[int, int]:  # noqa: ANN401 - any JSON value
    start, stop = numbers_of(value)
    return start, stop


def _result_rows(plan: Plan) -> list[list[Any]]:
    """Returns the rows of results; of one that is an argument's next value, and is placed as it is, the path alone."""
    rows = [_tensor_row(one) for one in plan.results]
    for one in plan.arguments:
        if one.alias is not None and _tensor_row(_as_result(one, one.path))[1:] == rows[one.alias][1:]:
            rows[one.alias] = rows[one.alias][:1]
    return rows


def _results(rows: Sequence[Any], arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
    given = {one.alias: one for one in arguments}
    return tuple(
        _tensor(row) if len(list_of(row)) > 1 else _as_result(given[number], text_of(row[0]))
        for number, row in enumerate(rows)
    )


def _as_result(one: Tensor, path: str) -> Tensor:
    """Returns the result that is an argument's next value, and is placed as it is."""
    return replace(one, path=path, alias=None, is_kept=False)


def _alternative(what: str, step_s: float | None, at_least_s: float, is_exact: bool, why: str) -> Alternative:
    step = None if step_s is None else amount_of(step_s)
    return Alternative(text_of(what), step, amount_of(at_least_s), flag_of(is_exact), text_of(why))


# One program by its shardings


def _sharding_json(one: Sharding) -> dict[str, Any]:
    memory = one.memory
    return {
        "form": one.form,
        "compute_s": one.compute_s,
        "communication_s": one.communication_s,
        "works": [astuple(work) for work in one.works],
        "costs": [astuple(cost) for cost in one.costs],
        "memory": [memory.num_times, memory.peak_time, memory.peak_op],
        "curve": [" ".join(f"{time}:{num_bytes}" for time, num_bytes in memory.curve)],
        "alive": [astuple(tensor) for tensor in memory.alive],
        "annotations": list(one.annotations.words),
        "annotation_of_op": _runs(one.annotations.ops),
        **({"views": _views_json(one.views)} if one.views else {}),
        **({"waiting": list(astuple(one.waiting))} if one.waiting else {}),
    }


def _views_json(views: Mapping[int, View]) -> list[list[Any]]:
    """Returns each view with the values that are stored in it.

    A dim is its size, with the block where it is in order, and with the parts and all blocks where they interleave.
    """
    found: dict[View, list[int]] = {}
    for value, view in views.items():
        found.setdefault(view, []).append(value)
    return [[[_blocks_json(one) for one in view], " ".join(map(str, values))] for view, values in found.items()]


def _blocks_json(one: Blocks) -> int | list[int]:
    if one.is_whole:
        return one.size
    return [one.parts, *one.sizes] if one.parts > 1 else [1, len(one.sizes), one.sizes[0]]


def _views(rows: list[Any]) -> dict[int, View]:
    pairs = [(int(value), tuple(map(_blocks, view))) for view, values in rows for value in text_of(values).split()]
    return dict(sorted(pairs))


def _blocks(given: Any) -> Blocks:  # noqa: ANN401 - any JSON value
    if not isinstance(given, list):
        return Blocks((number_of(given),))
    parts, *sizes = numbers_of(given)
    if parts == 1:
        count, block = sizes
        sizes = [block] * count
    if parts < 1 or not sizes or min(sizes) < 1 or any(size % parts for size in sizes):
        raise ValueError(f"{given} are no blocks")
    return Blocks(tuple(sizes), parts)


_WAITING: Final = (number_of, number_of, amount_of)


def _sharding(data: dict[str, Any]) -> Sharding:
    num_times, peak_time, peak_op = data["memory"]
    points = [point.split(":") for line in texts_of(data["curve"]) for point in line.split()]
    return Sharding(
        form=text_of(data["form"]),
        compute_s=amount_of(data["compute_s"]),
        communication_s=amount_of(data["communication_s"]),
        works=_records(Work, data["works"], (*[text_of] * 3, *[number_of] * 2, text_of, *[amount_of] * 2, number_of)),
        costs=_records(Cost, data["costs"], (text_of, number_of, number_of, amount_of, *[text_of] * 3)),
        memory=Memory(
            number_of(num_times),
            number_of(peak_time),
            text_of(peak_op),
            tuple((int(time), int(num_bytes)) for time, num_bytes in points),
            _records(PeakTensor, data["alive"], (text_of, text_of, number_of, number_of)),
        ),
        annotations=Annotations(texts_of(data["annotations"]), _from_runs(text_of(data["annotation_of_op"]))),
        views=_views(list_of(data.get("views", []))),
        waiting=next(iter(_records(Waiting, data.get("waiting", []) and [data["waiting"]], _WAITING)), None),
    )


def _records(
    record: Callable[..., _Record],
    rows: Any,  # noqa: ANN401 - JSON
    fields: Sequence[Callable[[Any], object]],
) -> tuple[_Record, ...]:
    return tuple(
        record(*(field(value) for field, value in zip(fields, list_of(row), strict=True))) for row in list_of(rows)
    )


def _runs(numbers: tuple[int, ...]) -> str:
    """Returns numbers as text, repeated ones as `3x12`."""
    counted = ((len(list(group)), number) for number, group in groupby(numbers))
    return " ".join(f"{count}x{number}" if count > 1 else str(number) for count, number in counted)


def _from_runs(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for word in text.split():
        count, times, number = word.rpartition("x")
        found += [int(number)] * (int(count) if times else 1)
    return tuple(found)


# What is executed


def _execution_json(one: Execution) -> dict[str, Any]:
    return {
        "run_s": list(one.run_s),
        "temp_bytes": list(one.temp_bytes),
        "link_latency_s": one.link_latency_s,
        "link_bytes_per_s": one.link_bytes_per_s,
        "nonnegative_arguments": list(one.nonnegative_arguments),
    }


def _execution(data: dict[str, Any], step: Step | None, modules: Mapping[str, str]) -> Execution:
    if step is None:
        raise ValueError("it says what is executed, and has no step")
    return Execution(
        step,
        modules,
        amounts_of(data["run_s"]),
        numbers_of(data["temp_bytes"]),
        amount_of(data["link_latency_s"]),
        amount_of(data["link_bytes_per_s"]),
        numbers_of(data["nonnegative_arguments"]),
    )


def _check(plan: Plan) -> None:
    """Raises ValueError or IndexError where a plan's parts do not go together."""
    peaks, kept = plan.predicted.peak_bytes, plan.predicted.kept_bytes
    if len(peaks) != plan.num_ranks or len(kept) != plan.num_ranks:
        raise ValueError(f"there are {len(peaks)} peaks and {len(kept)} sizes of kept state, expected {plan.num_ranks}")
    for one in (*plan.arguments, *plan.results):
        if one.rank >= plan.num_ranks or one.num_key_dims < 0 or (one.padded and len(one.padded) != len(one.shape)):
            raise ValueError(f"{one.path!r} is {one}")
        if one.viewed and not _is_view(one):
            raise ValueError(f"{one.path!r} of shape {one.padded or one.shape} is no {one.viewed} in blocks")
        if one.interleaved and not (one.viewed and are_interleaved(one.interleaved, one.padded or one.shape)):
            raise ValueError(f"{one.path!r} of shape {one.padded or one.shape} has no blocks {one.interleaved}")
        if unknown := {axis for axes in one.dims for axis in axes} - set(plan.meshes[one.rank].names):
            raise ValueError(f"{one.path!r} is split along {sorted(unknown)}, and the mesh is {plan.meshes[one.rank]}")
        if one.rows and (not one.path.endswith(rows_text(one.rows)) or one.shape[0] != one.rows[1] - one.rows[0]):
            raise ValueError(f"{one.path!r} is not rows {one.rows[0]} to {one.rows[1]} of a leaf")
    for side in (plan.arguments, plan.results):
        if any((rows := side[group[0]].rows) and rows[0] for group in leaf_groups(side)):
            raise ValueError("a leaf in pieces lacks its first rows")
    _check_aliases(plan)
    if plan.execution:
        _check_execution(plan, plan.execution)
    elif plan.sharding and (plan.num_ranks, plan.schedule, plan.shares) != (1, "", ()):
        raise ValueError(f"one program is on {plan.num_ranks} ranks, by the schedule {plan.schedule!r}")


def _is_view(one: Tensor) -> bool:
    """Says whether a tensor's `viewed` is its shape with some dims as blocks, and `dims` are of that."""
    left = list(one.viewed)
    for size in one.padded or one.shape:
        if not left or ((stored := left.pop(0)) != size and (not left or stored * left.pop(0) != size)):
            return False
    return not left and len(one.dims) == len(one.viewed)


def _check_aliases(plan: Plan) -> None:
    """Raises ValueError unless every alias is of a result of the argument's type that no other argument becomes."""
    taken = [one.alias for one in plan.arguments if one.alias is not None]
    for one in plan.arguments:
        if one.alias is None and one.is_kept:
            raise ValueError(f"argument {one.path!r} is kept, and no result takes its place")
        if one.alias is not None and (plan.results[one.alias].kind != one.kind or taken.count(one.alias) > 1):
            raise ValueError(f"argument {one.path!r} becomes result {one.alias}")


def _check_execution(plan: Plan, execution: Execution) -> None:
    """Raises ValueError or IndexError where a plan's step is not of its mesh, ranks, programs and placements."""
    step = execution.step
    if step.meshes != plan.meshes:
        raise ValueError(f"the step has {step.num_ranks} ranks of {meshes_text(step.meshes)}")
    if step.devices != plan.devices:
        raise ValueError("the step has ranks on other devices")
    for name, found in (("run_s", execution.run_s), ("temp_bytes", execution.temp_bytes)):
        if len(found) != len(step.programs):
            raise ValueError(f"{name} are {len(found)}, expected {len(step.programs)}")
    if any(isinstance(one, Run) and one.task.phase == "step" for one in step.instructions) != plan.is_one_stage:
        raise ValueError(f"the schedule is {plan.schedule!r}, which does not go with the programs of the step")
    if plan.shares and (len(plan.shares), sum(plan.shares)) != (plan.num_ranks, plan.num_micro_batches):
        raise ValueError(f"{plan.num_ranks} replicas share {plan.num_micro_batches} micro-batches as {plan.shares}")
    fed = set[int]()
    for one in step.instructions:
        match one:
            case Feed(number) if number in fed:
                continue  # the plan says where an argument is fed first
            case Feed(number, slot):
                fed.add(number)
                tensor = plan.arguments[number]
            case Fetch(slot, number):
                tensor = plan.results[number]
            case _:
                continue
        there = step.slots[slot]
        if (there.rank, there.layout.dims) != (tensor.rank, tensor.dims):
            raise ValueError(f"{tensor.path!r} is on rank {tensor.rank} as {tensor.dims}, and in the step it is not")


# Text


def _object(data: Mapping[str, Any]) -> str:
    """Returns an object whose inner lists and objects have a line for each entry."""
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_block(value, '    ')}" for key, value in data.items()) + "\n}"


def _block(value: Any, indent: str) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, Mapping) and value:
        inner = [f"{indent}{json.dumps(key)}: {_inner(one, indent)}" for key, one in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{indent[:-2]}}}"
    if isinstance(value, list | tuple) and value:
        return "[\n" + ",\n".join(f"{indent}{json.dumps(one)}" for one in value) + f"\n{indent[:-2]}]"
    return json.dumps(value)


def _inner(value: Any, indent: str) -> str:  # noqa: ANN401 - as above
    """Returns a value of an inner object: lists of rows have a line for each."""
    is_rows = isinstance(value, list) and any(isinstance(one, list | tuple | str) for one in value)
    return _block(value, f"{indent}  ") if is_rows else json.dumps(value)
