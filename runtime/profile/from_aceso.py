"""A cluster's figures from Aceso's tables: products of matrices, collectives inside a node, transfers.

A product is known by what it reads, writes and holds: from the elements of its operand [rows, depth], of its weights
[depth, columns] and of its result [rows, columns] follow its FLOPs, 2 x rows x depth x columns, which are twice the
root of all three multiplied. Its operand is what the op before it stashes. Rows that are not split are taken, for
others have collectives in their times; the backward pass of a product is two of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import sqrt
from pathlib import Path
from typing import Final

from rhino.ir.cluster.aceso_tables import KINDS, MEGABYTE, AcesoTables, aceso_models, read_aceso
from rhino.ir.cluster.hardware import Cluster, Level, Operator
from rhino.runtime.profile.fit import Fit, fit_line

_PRODUCTS: Final = ("-qkv", "-dense", "-GEMM-1", "-GEMM-2")
"""How the names of ops end that are products of matrices."""

_DTYPE: Final = "f16"
_BYTES: Final = 2
"""Models with such ops were profiled in f16."""

_SOURCE: Final = "Aceso's tables (microsoft/SuperScaler), V100-SXM2"


def read_all(directory: Path) -> tuple[AcesoTables, ...]:
    """Returns the tables of all models in a directory.

    Raises:
        RhinoError: RHI-CLUSTER-004 where tables are malformed or missing.
    """
    return tuple(read_aceso(directory, model) for model in aceso_models(directory))


def with_links(cluster: Cluster, tables: Sequence[AcesoTables]) -> Cluster:
    """Returns a cluster with the collectives and transfers that were measured in place of its own."""
    *outer, inner = cluster.levels
    within = _transfer(tables[0].within_node)
    inner = _with_transfer(_with_collectives(inner, tables), within)
    if outer:
        outer[-1] = _with_transfer(outer[-1], _transfer(tables[0].between_nodes))
    return replace(cluster, levels=(*outer, inner))


def products_of(tables: Sequence[AcesoTables]) -> tuple[Operator, ...]:
    """Returns the table of products, in which seconds never fall as FLOPs grow; none where there are none."""
    seconds: dict[float, float] = {}
    for flops, taken in (one for table in tables for one in _products(table)):
        seconds[flops] = max(taken, seconds.get(flops, 0.0))
    works = sorted(seconds)
    slowest = accumulate([seconds[work] for work in works], max)
    source = f"{_SOURCE}: products of {len(tables)} models, forward and backward pass"
    points = tuple(zip(works, slowest, strict=True))
    return (Operator("stablehlo.dot_general", _DTYPE, points, source),) if points else ()


def _products(table: AcesoTables) -> Iterator[tuple[float, float]]:
    """Yields the FLOPs and seconds of the products of a model."""
    for setting, ops in table.ops.items():
        for before, op in pairwise(ops):
            if setting.parts > 1 or setting.form or before is None or op is None:
                continue
            if any(part in op.name for part in _PRODUCTS):
                elements = [size / _BYTES for size in (before.stash_bytes, op.weight_bytes, op.stash_bytes)]
                flops = float(f"{2 * sqrt(elements[0] * elements[1] * elements[2]):.4g}")
                yield flops, op.forward_s
                yield flops, op.backward_s / 2


def _with_collectives(level: Level, tables: Sequence[AcesoTables]) -> Level:
    """Returns a level with the collectives of groups of its units that were measured."""
    points: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (kind, count), known in ((key, known) for table in tables for key, known in table.collectives.items()):
        for megabytes, seconds in known.items():
            if megabytes and count <= level.size:
                points[kind, count][megabytes].append(seconds)
    fits = {
        (kind, count): fit_line(list(_payloads(kind, count, points[kind, count].items())))
        for kind in KINDS
        for count in sorted({count for one, count in points if one == kind})
    }
    kept = tuple(one for one in level.collectives if one[:2] not in fits)
    sources = _sources(level, {f"collectives.{kind}.{count}": fit for (kind, count), fit in fits.items()})
    found = tuple((kind, count, fit.line) for (kind, count), fit in fits.items())
    return replace(level, collectives=(*kept, *found), sources=sources)


def _payloads(kind: str, count: int, known: Iterable[tuple[int, list[float]]]) -> Iterator[tuple[float, float]]:
    """Yields payload and mean seconds: what is gathered is the payload of a gather, and its size was that of a part."""
    for megabytes, seconds in known:
        yield megabytes * MEGABYTE * (count if kind == "all_gather" else 1), sum(seconds) / len(seconds)


def _transfer(rates: Sequence[tuple[float, float]]) -> Fit:
    return fit_line([(size * MEGABYTE, size * MEGABYTE / rate) for size, rate in rates])


def _with_transfer(level: Level, fit: Fit) -> Level:
    return replace(level, transfer=fit.line, sources=_sources(level, {"transfer": fit}))


def _sources(level: Level, fits: dict[str, Fit]) -> tuple[tuple[str, str], ...]:
    kept = tuple(one for one in level.sources if one[0] not in fits)
    return *kept, *((name, f"{_SOURCE}, one group at a time: {fit.text}") for name, fit in fits.items())
