"""Tables of measured ops: JSON from elsewhere, or `[[operator]]` in a cluster file.

`docs/cluster.md` describes both.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Final

from rhino.ir.cluster.hardware import Operator
from rhino.ir.cluster.table import Table, is_positive
from rhino.ir.diagnostics import Place, RhinoError

VERSION: Final = 1
_OP: Final = re.compile(r"[a-z_]\w*\.[\w.]+")
_DTYPE: Final = re.compile(r"[a-z]\w*(<\w+>)?")
_POINTS: Final = "pairs [work, seconds] of positive, finite numbers, work ascending and seconds not descending"
_SHAPES: Final = ("operands", "results")
_TYPES: Final = 'a list of types between the brackets of tensors, as ["256x512xf32"], in a table that has both'
_TYPE: Final = re.compile(r"(\d+x)*[a-z]\w*(<\w+>)?")
_MANY: Final = "one or more tables of operators"


def parse_operators(text: str, file: str = "") -> tuple[Operator, ...]:
    """Returns the operators of a JSON table; `file` is named in errors.

    Raises:
        RhinoError: RHI-CLUSTER-003 where the text is not JSON, a key is missing, unknown or has a bad value, or an
            operator is there twice.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        place = Place(file, error.lineno, error.colno)
        raise RhinoError(
            "RHI-CLUSTER-003", f"the operator table is not JSON: {error.msg}", place, fix="see docs/cluster.md"
        ) from None
    if not isinstance(data, dict):
        raise RhinoError(
            "RHI-CLUSTER-003", "the operator table is no JSON object", Place(file), fix="see docs/cluster.md"
        )
    root = Table(data, "", file, "RHI-CLUSTER-003", "operator table")
    root.keys("version", "source", "operators")
    if root.count("version") != VERSION:
        root.fail("version", str(VERSION))
    source = root.text("source")
    tables = root.tables("operators", _MANY)
    for table in tables:
        table.keys("op", "dtype", "points", optional=_SHAPES)
    found = tuple(_operator(table, source) for table in tables)
    _refuse_doubles(found, tables)
    return found


def file_operators(tables: list[Table]) -> tuple[Operator, ...]:
    """Returns the operators of a cluster file, each of which names its source. Raises the tables' error."""
    for table in tables:
        table.keys("op", "dtype", "points", "source", optional=_SHAPES)
    found = tuple(_operator(table, table.text("source")) for table in tables)
    _refuse_doubles(found, tables)
    return found


def _operator(table: Table, source: str) -> Operator:
    op, dtype = table.text("op"), table.text("dtype")
    if not _OP.fullmatch(op):
        table.fail("op", 'the name of an op, as "stablehlo.dot_general"')
    if not _DTYPE.fullmatch(dtype):
        table.fail("dtype", 'an element type as MLIR writes it, as "bf16"')
    operands, results = (_types(table, key) for key in _SHAPES)
    if bool(operands) != bool(results):
        table.fail("results" if operands else "operands", _TYPES)
    return Operator(op, dtype, _points(table), source, operands, results)


def _types(table: Table, key: str) -> tuple[str, ...]:
    value = table.data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) and _TYPE.fullmatch(one) for one in value):
        table.fail(key, _TYPES)
    return tuple(value)


def _points(table: Table) -> tuple[tuple[float, float], ...]:
    value = table.data["points"]
    if not isinstance(value, list) or not value:
        table.fail("points", _POINTS)
    points = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(is_positive, pair)):
            table.fail("points", _POINTS)
        points.append((float(pair[0]), float(pair[1])))
    if any(w1 <= w0 or s1 < s0 for (w0, s0), (w1, s1) in pairwise(points)):
        table.fail("points", _POINTS)
    return tuple(points)


def _refuse_doubles(found: tuple[Operator, ...], tables: list[Table]) -> None:
    known: set[object] = set()
    for one, table in zip(found, tables, strict=True):
        if one.key in known:
            table.fail("op", f"an op that has no table for {', '.join(one.operands) or one.dtype} yet")
        known.add(one.key)
