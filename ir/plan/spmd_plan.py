"""A plan for one SPMD program as a file: how every tensor lies, for which program and which cluster, and what it is predicted to cost.

One JSON object; rows that belong together stand one to a line, so that a diff of two files reads. Arguments and results go by their pytree
paths. How the ops inside run is `annotations`: what the search wrote on each op of the normalized program, in program order. What they
take is in `works`, `costs` and `memory`, where rows that differ in the numbers of their names alone are one: layers, mostly.

Errors    RHI-PLAN-001 not such a plan, or one of another version; RHI-PLAN-003 it cannot be written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.spec import dim_axes, partial_axes

VERSION: Final = 2
_FORMAT: Final = "rhino-spmd-plan"
_FIX: Final = "write it with Plan.save, or rhino-opt --auto-shard --plan"
_KIND: Final = re.compile(r".*\[(.*)\]")
_NUMBER: Final = re.compile(r"\[\d+\]|(?<=[A-Za-z_])\d+(?=\b|_)")

Dims = tuple[tuple[str, ...], ...]
"""The axes that split each dim of a tensor, outermost first."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument or result by its pytree path.

    `kind` is dtype and global shape, as `float32[8,16]`. `dims` is of the tensor as it is stored, which for a typed key has dims behind the
    key's own. `alias` is the result that lies as an argument does, and is that argument in the next step; None on a result. `padded` is the
    shape in which it is stored, with zeros behind its own elements; empty where that is its own. `num_bytes` are those that are stored.
    """

    path: str
    kind: str
    dims: Dims
    num_bytes: int
    alias: int | None = None
    padded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The program that a plan is for: hashes as it was traced and as it was normalized, and how many ops of each kind it had."""

    function: str
    sha256: str
    normal_sha256: str
    ops: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Cost:
    """Collectives that are alike: `count` of them in a step, their payload in bytes per device and their seconds together.

    `tensor` is what is moved and `reader` for what (empty: it is stored so), by the user's names; `[*]` stands for numbers that differ.
    `line` is where that stands in the user's source, as `model.py:41`, where it is known.
    """

    kind: str
    count: int
    num_bytes: int
    seconds: float
    tensor: str
    reader: str
    line: str

    @property
    def place(self) -> str:
        """What is moved, and for what."""
        return f"{self.tensor} for {self.reader}" if self.reader else f"{self.tensor}, where it arises"


@dataclass(frozen=True, slots=True)
class Work:
    """Ops that are alike: `count` executions in a step, each shared by `shares` devices, in the scope `name` of the user's program.

    `compute_s` are their seconds together on a device, `collectives_s` those of the collectives that they wait for or that finish them,
    `num_bytes` what their results take there, all together. `how` is how operands are needed and results come.
    """

    kind: str
    name: str
    line: str
    count: int
    shares: int
    how: str
    compute_s: float
    collectives_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PeakTensor:
    """Tensors that are alike and alive at the peak: `count` of them, with their bytes on a device together."""

    name: str
    kind: str
    count: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes alive on a device over the schedule of a step.

    `curve` has a point (time, bytes) where the largest bytes of each part of the schedule are first reached, and the peak; times count from
    0 to `num_times`. `alive` is what lies there at the peak, the largest first.
    """

    num_times: int
    peak_time: int
    peak_op: str
    curve: tuple[tuple[int, int], ...]
    alive: tuple[PeakTensor, ...]


@dataclass(frozen=True, slots=True)
class Rival:
    """Another mesh that was searched: what its best plan takes, or why it has none (`step_s` is None then)."""

    mesh: str
    step_s: float | None
    at_least_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a step is predicted to take. `at_least_s`: no plan of the same cost model is faster.

    `compute_s` and `communication_s` are of ops and of collectives; what is left of `step_s` is to launch the program and to cut blocks.
    `kept_bytes`, of the peak, are state that the caller keeps beside the new one; what is planned has `budget_bytes` less these.
    """

    step_s: float
    at_least_s: float
    compute_s: float
    communication_s: float
    peak_bytes: int
    budget_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class Annotations:
    """What stands on the ops of the normalized program: op `i` carries the attributes `words[ops[i]]`."""

    words: tuple[str, ...]
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpmdPlan:
    """One plan. `cluster` is the text of the cluster's file, `asked` what the user asked for beside it, `form` what is compiled."""

    source: Source
    cluster: tuple[str, ...]
    mesh: tuple[tuple[str, int], ...]
    form: str
    asked: Mapping[str, Any]
    versions: Mapping[str, str]
    predicted: Predicted
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    works: tuple[Work, ...]
    costs: tuple[Cost, ...]
    memory: Memory
    rivals: tuple[Rival, ...]
    annotations: Annotations


def plan_to_text(plan: SpmdPlan) -> str:
    """Returns the file of a plan; the same text for the same plan."""
    found = {one.name: getattr(plan, one.name) for one in fields(plan)}
    found |= {"source": asdict(plan.source), "predicted": asdict(plan.predicted)}
    found["arguments"] = [_tensor_row(one) for one in plan.arguments]
    found["results"] = _result_rows(plan)
    for name in ("works", "costs", "rivals"):
        found[name] = [astuple(one) for one in getattr(plan, name)]
    found["memory"] = asdict(plan.memory) | {"alive": [astuple(one) for one in plan.memory.alive]}
    found["annotations"] = {"words": list(plan.annotations.words), "ops": _runs(plan.annotations.ops)}
    return _dump({"format": _FORMAT, "version": VERSION, **found}) + "\n"


def plan_from_text(text: str, file: str = "") -> SpmdPlan:
    """Returns the plan that a file holds. Raises RHI-PLAN-001."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _no_plan(file, f"not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise _no_plan(file, f"its format is not {_FORMAT!r}")
    if data.get("version") != VERSION:
        raise _no_plan(file, f"it is of version {data.get('version')!r}, and this reads version {VERSION}")
    try:
        return SpmdPlan(
            source=Source(**data["source"]),
            cluster=tuple(data["cluster"]),
            mesh=tuple((str(name), int(size)) for name, size in data["mesh"]),
            form=data["form"],
            asked=dict(data["asked"]),
            versions=dict(data["versions"]),
            predicted=Predicted(**data["predicted"]),
            arguments=tuple(map(_tensor, data["arguments"])),
            results=_results(data["results"], tuple(map(_tensor, data["arguments"]))),
            works=tuple(Work(*row) for row in data["works"]),
            costs=tuple(Cost(*row) for row in data["costs"]),
            memory=_memory(data["memory"]),
            rivals=tuple(Rival(*row) for row in data["rivals"]),
            annotations=Annotations(tuple(data["annotations"]["words"]), _from_runs(data["annotations"]["ops"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_plan(file, f"malformed: {type(error).__name__}: {error}") from None


def save_plan(plan: SpmdPlan, path: Path) -> None:
    """Writes a plan as a file, whole or not at all. Raises RHI-PLAN-003."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(plan_to_text(plan), encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise RhinoError(
            "RHI-PLAN-003",
            f"the plan cannot be written: {error.strerror}",
            Place(str(path)),
            fix="name a file in a folder that can be written",
        ) from None


def load_plan(path: Path) -> SpmdPlan:
    """Returns the plan in a file. Raises RHI-PLAN-001."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _no_plan(str(path), error.strerror or "" if isinstance(error, OSError) else "not UTF-8 text") from None
    return plan_from_text(text, str(path))


def dims_between_calls(tensor: Tensor, mesh: Mapping[str, int]) -> Dims:
    """Returns the axes that split each dim of an array of JAX's, which has its own shape.

    JAX splits no dim that devices do not divide. What splits a padded one inside of the program splits another between calls, the first
    that is left with a multiple of its size, or none.
    """
    found = _KIND.fullmatch(tensor.kind)
    shape = [int(size) for size in found[1].split(",")] if found and found[1] else []
    dims, homeless = [list(axes) for axes in tensor.dims[: len(shape)]], list[str]()
    for dim, padded in enumerate(tensor.padded):
        if padded != shape[dim]:
            homeless += dims[dim]
            dims[dim] = []
    for axis in homeless:
        parts = [prod(mesh[one] for one in (*axes, axis)) for axes in dims]
        if (home := next((dim for dim, size in enumerate(shape) if size and size % parts[dim] == 0), None)) is not None:
            dims[home].append(axis)
    return tuple(map(tuple, dims))


def num_parts(tensor: Tensor, mesh: Mapping[str, int]) -> int:
    """Returns into how many parts a tensor is split."""
    parts = 1
    for axis in (axis for axes in tensor.dims for axis in axes):
        parts *= mesh[axis]
    return parts


def folded(name: str) -> str:
    """Returns a tensor's or op's name with `[*]` for its numbers: those of layers, say, which are alike in all else."""
    return _NUMBER.sub("[*]", name)


def dims_text(dims: Dims) -> str:
    """Returns dims as Shardy lists them: `[{}, {"x"}]`."""
    return "[" + ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in dims) + "]"


def layout_text(spec: int, axes: Sequence[str], rank: int) -> str:
    """Returns how a tensor of `rank` lies on the mesh axes, as Shardy lists dims; a partial sum is one `sum over` some of them."""
    dims = dims_text(tuple(tuple(axes[axis] for axis in one) for one in dim_axes(spec, len(axes), rank)))
    sums = ", ".join(f'"{axes[axis]}"' for axis in partial_axes(spec))
    return f"{dims} sum over {{{sums}}}" if sums else dims


def _tensor_row(one: Tensor) -> list[Any]:
    row = [one.path, one.kind, [list(axes) for axes in one.dims], one.num_bytes]
    return [*row, one.alias, list(one.padded)] if one.padded else row if one.alias is None else [*row, one.alias]


def _result_rows(plan: SpmdPlan) -> list[list[Any]]:
    """Returns the rows of results; of one that is an argument's next value, and lies as it does, the path alone."""
    rows = [_tensor_row(one) for one in plan.results]
    for one in plan.arguments:
        if one.alias is not None and _tensor_row(replace(one, alias=None))[1:] == rows[one.alias][1:]:
            rows[one.alias] = rows[one.alias][:1]
    return rows


def _results(rows: Sequence[list[Any]], arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
    given = {one.alias: one for one in arguments}
    return tuple(_tensor(row) if len(row) > 1 else replace(given[n], path=row[0], alias=None) for n, row in enumerate(rows))


def _tensor(row: list[Any]) -> Tensor:
    path, kind, dims, num_bytes, *last = row
    alias = last[0] if last else None
    padded = tuple(last[1]) if len(last) > 1 else ()
    return Tensor(path, kind, tuple(map(tuple, dims)), num_bytes, alias, padded)


def _memory(data: Mapping[str, Any]) -> Memory:
    curve = tuple((int(time), int(num_bytes)) for time, num_bytes in data["curve"])
    return Memory(data["num_times"], data["peak_time"], data["peak_op"], curve, tuple(PeakTensor(*row) for row in data["alive"]))


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


def _dump(data: Mapping[str, Any]) -> str:
    """Returns JSON whose inner lists and objects have a line for each entry."""
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_block(value)}" for key, value in data.items()) + "\n}"


def _block(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, Mapping) and value:
        return "{\n" + ",\n".join(f"    {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()) + "\n  }"
    if isinstance(value, list | tuple) and value:
        return "[\n" + ",\n".join(f"    {json.dumps(one)}" for one in value) + "\n  ]"
    return json.dumps(value)


def _no_plan(file: str, why: str) -> RhinoError:
    return RhinoError("RHI-PLAN-001", f"not a plan that can be read: {why}", Place(file), fix=_FIX)
