"""A plan for one SPMD program as a file: how every tensor lies, for which program and which cluster, and what it is predicted to cost.

One JSON object; rows that belong together stand one to a line, so that a diff of two files reads. Arguments and results go by their pytree
paths. How the ops inside run is `annotations`: what the search wrote on each op of the normalized program, in program order.

Errors    RHI-PLAN-001 not such a plan, or one of another version; RHI-PLAN-003 it cannot be written.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from rhino.ir.diagnostics import Place, RhinoError

VERSION: Final = 1
_FORMAT: Final = "rhino-spmd-plan"
_FIX: Final = "write it with Plan.save"
_NUMBER: Final = re.compile(r"\[\d+\]|(?<=[A-Za-z_])\d+(?=\b|_)")

Dims = tuple[tuple[str, ...], ...]
"""The axes that split each dim of a tensor, outermost first."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument or result by its pytree path.

    `kind` is dtype and global shape, as `float32[8,16]`. `dims` is of the tensor as it is stored, which for a typed key has dims behind the
    key's own. `alias` is the result that lies as an argument does, and is that argument in the next step; None on a result.
    """

    path: str
    kind: str
    dims: Dims
    num_bytes: int
    alias: int | None = None


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
    """

    kind: str
    count: int
    num_bytes: int
    seconds: float
    tensor: str
    reader: str

    @property
    def place(self) -> str:
        """What is moved, and for what."""
        return f"{self.tensor} for {self.reader}" if self.reader else f"{self.tensor}, where it arises"


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a step is predicted to take. `at_least_s`: no plan of the same cost model is faster."""

    step_s: float
    at_least_s: float
    communication_s: float
    peak_bytes: int
    budget_bytes: int


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
    costs: tuple[Cost, ...]
    annotations: Annotations


def plan_to_text(plan: SpmdPlan) -> str:
    """Returns the file of a plan; the same text for the same plan."""
    found = {one.name: getattr(plan, one.name) for one in fields(plan)}
    found |= {"source": asdict(plan.source), "predicted": asdict(plan.predicted)}
    found["arguments"], found["results"] = ([_tensor_row(one) for one in side] for side in (plan.arguments, plan.results))
    found["costs"] = [list(asdict(one).values()) for one in plan.costs]
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
            results=tuple(map(_tensor, data["results"])),
            costs=tuple(Cost(*row) for row in data["costs"]),
            annotations=Annotations(tuple(data["annotations"]["words"]), _from_runs(data["annotations"]["ops"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_plan(file, f"malformed: {type(error).__name__}: {error}") from None


def save_plan(plan: SpmdPlan, path: Path) -> None:
    """Writes a plan as a file, whole or not at all. Raises RHI-PLAN-003."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as stream:
            stream.write(plan_to_text(plan))
        os.replace(stream.name, path)
    except OSError as error:
        raise RhinoError("RHI-PLAN-003", f"the plan cannot be written: {error.strerror}", Place(str(path))) from None


def load_plan(path: Path) -> SpmdPlan:
    """Returns the plan in a file. Raises RHI-PLAN-001."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _no_plan(str(path), error.strerror or "" if isinstance(error, OSError) else "not UTF-8 text") from None
    return plan_from_text(text, str(path))


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


def _tensor_row(one: Tensor) -> list[Any]:
    row = [one.path, one.kind, [list(axes) for axes in one.dims], one.num_bytes]
    return row if one.alias is None else [*row, one.alias]


def _tensor(row: list[Any]) -> Tensor:
    path, kind, dims, num_bytes, *alias = row
    return Tensor(path, kind, tuple(map(tuple, dims)), num_bytes, *alias)


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
