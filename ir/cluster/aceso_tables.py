"""Aceso's tables of profiled ops: a directory of CSV files, as its profiler writes them.

A model's ops stand in `MODEL_mbsM_tpT_algoA.csv`, each with what it takes for M examples where it is split over T
devices in one of two ways, and the collectives of its tensors in `prim_MODEL_KIND_Ngpus.csv`. What a transfer between
two devices reaches, in a node and between nodes, is the same for all models: `p2p_intra_node.csv`,
`p2p_inter_node.csv`. A megabyte is 2**20 bytes. What did not run when it was profiled has a time of seconds or days in
place of one; it is left out here.

Source: Liu et al., "Aceso" (EuroSys 2024), section 3.3, and the files beside its code (microsoft/SuperScaler, branch
Aceso, profiler/profiled-time-eurosys).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn

from rhino.ir.diagnostics import Place, RhinoError

_ID: Final = "RHI-CLUSTER-004"
_OPS_FILE: Final = re.compile(r"(?P<model>\w[\w-]*)_mbs(?P<examples>\d+)_tp(?P<parts>\d+)_algo(?P<form>\d+)\.csv")
_OP_COLUMNS: Final = (
    "op_name",
    "forward-compute",
    "backward-compute",
    "input_size",
    "output_size",
    "weights",
    "activations",
    "fwd_reserved",
    "bwd_reserved",
)
_COLLECTIVE_COLUMNS: Final = ("data_size(MB)", "time(ms)")
KINDS: Final = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
MEGABYTE: Final = 1 << 20
_FAILED_S: Final = 10.0
"""From so many seconds on a time says that the op, or the collective, did not run."""


@dataclass(frozen=True, slots=True)
class ProfiledOp:
    """What one op takes on each of the devices that it is split over.

    Units: seconds of the forward and the backward pass, and bytes: of what comes in and goes out, residuals included,
    of parameters, of the activation stash, and of what the allocator keeps beside those.
    """

    name: str
    forward_s: float
    backward_s: float
    input_bytes: float
    output_bytes: float
    weight_bytes: float
    stash_bytes: float
    forward_reserved_bytes: float
    backward_reserved_bytes: float


@dataclass(frozen=True, slots=True)
class Setting:
    """For how many examples an op was profiled, split over so many devices, in which of its forms."""

    examples: int
    parts: int
    form: int


@dataclass(frozen=True, slots=True)
class AcesoTables:
    """The tables of one model.

    `ops` has each op once, in the order of the model, None where it did not run; `collectives` the seconds of a kind
    among so many devices by whole megabytes of the tensor, and `within_node`, `between_nodes` what a transfer reaches
    in bytes per second, by megabytes.
    """

    model: str
    names: tuple[str, ...]
    ops: Mapping[Setting, tuple[ProfiledOp | None, ...]]
    collectives: Mapping[tuple[str, int], Mapping[int, float]]
    within_node: tuple[tuple[float, float], ...]
    between_nodes: tuple[tuple[float, float], ...]


def aceso_models(directory: Path) -> tuple[str, ...]:
    """Returns the models whose tables are in a directory, in the order of their names.

    Raises:
        RhinoError: RHI-CLUSTER-004 where it cannot be read, or has no table of a model.
    """
    try:
        names = sorted(one.name for one in directory.iterdir())
    except OSError as error:
        _fail(directory, 0, f"the directory cannot be read: {error.strerror}", "give the directory of the CSV files")
    found = tuple(dict.fromkeys(match["model"] for name in names if (match := _OPS_FILE.fullmatch(name))))
    if not found:
        _fail(
            directory,
            0,
            "no file is named as a table of ops is, MODEL_mbsM_tpT_algoA.csv",
            "give the directory of the CSV files that the profiler wrote",
        )
    return found


def read_aceso(directory: Path, model: str) -> AcesoTables:
    """Returns the tables of one model.

    Raises:
        RhinoError: RHI-CLUSTER-004 where a file is missing or malformed, or there is no such model.
    """
    if model not in (known := aceso_models(directory)):
        _fail(directory, 0, f"no tables of a model {model!r}", f"name one of {', '.join(known)}")
    files: dict[Setting, Path] = {}
    for path in sorted(directory.iterdir()):
        if (match := _OPS_FILE.fullmatch(path.name)) and match["model"] == model:
            files[Setting(int(match["examples"]), int(match["parts"]), int(match["form"]))] = path
    ops = {setting: tuple(_ops(path)) for setting, path in sorted(files.items(), key=lambda one: str(one[1]))}
    names = _names(ops, files)
    collectives = {
        (kind, count): _collective(path)
        for kind in KINDS
        for count in (2, 4, 8)
        if (path := directory / f"prim_{model}_{kind}_{count}gpus.csv").is_file()
    }
    within = _transfers(directory / "p2p_intra_node.csv")
    between = directory / "p2p_inter_node.csv"
    return AcesoTables(
        model,
        names,
        {setting: tuple(op for _, op in rows) for setting, rows in ops.items()},
        collectives,
        within,
        _transfers(between) if between.is_file() else within,
    )


def _names(
    ops: Mapping[Setting, Sequence[tuple[str, ProfiledOp | None]]], files: Mapping[Setting, Path]
) -> tuple[str, ...]:
    first, *others = ops
    names = tuple(name for name, _ in ops[first])
    for other in others:
        if (found := tuple(name for name, _ in ops[other])) != names:
            line = next((n for n, pair in enumerate(zip(found, names, strict=False)) if pair[0] != pair[1]), len(names))
            _fail(
                files[other],
                line + 2,
                f"not the ops of {files[first].name}, in their order",
                "profile the model again, with all settings in one run",
            )
    return names


def _ops(path: Path) -> Iterator[tuple[str, ProfiledOp | None]]:
    for line, (name, *cells) in _rows(path, _OP_COLUMNS):
        if not name:
            _fail(path, line, "the op has no name", "name it in the first column")
        forward_us, backward_us, *sizes = _numbers(path, line, cells)
        forward_s, backward_s = forward_us * 1e-6, backward_us * 1e-6
        ran = max(forward_s, backward_s) < _FAILED_S
        yield name, ProfiledOp(name, forward_s, backward_s, *(size * MEGABYTE for size in sizes)) if ran else None


def _collective(path: Path) -> dict[int, float]:
    rows = ((line, _numbers(path, line, cells)) for line, cells in _rows(path, _COLLECTIVE_COLUMNS))
    return {round(size): time_ms * 1e-3 for _, (size, time_ms) in rows if time_ms * 1e-3 < _FAILED_S}


def _transfers(path: Path) -> tuple[tuple[float, float], ...]:
    (_, sizes), (line, rates) = _lines(path, 2)
    megabytes, gigabytes_per_s = _numbers(path, 1, sizes), _numbers(path, line, rates)
    if len(megabytes) != len(gigabytes_per_s):
        _fail(path, line, f"{len(gigabytes_per_s)} rates for {len(megabytes)} sizes", "give each size its rate")
    if not all(one < two for one, two in pairwise(megabytes)) or not all(rate > 0 for rate in gigabytes_per_s):
        _fail(path, line, "sizes that do not ascend, or a rate of 0", "measure the transfers again")
    return tuple((size, rate * (1 << 30)) for size, rate in zip(megabytes, gigabytes_per_s, strict=True))


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    (_, head), *rows = _lines(path, 2)
    if tuple(head) != tuple(columns):
        _fail(path, 1, f"the columns are {', '.join(head)}", f"name them {', '.join(columns)}")
    for line, cells in rows:
        if len(cells) != len(columns):
            _fail(path, line, f"{len(cells)} cells in {len(columns)} columns", "write a number into each")
        yield line, cells


def _lines(path: Path, least: int) -> list[tuple[int, list[str]]]:
    """Returns the lines of a file that are not empty, with their numbers."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        _fail(path, 0, f"the file cannot be read: {reason}", "give a directory with all files of the profile")
    rows = csv.reader(text.splitlines())
    found = [(line, [cell.strip() for cell in cells]) for line, cells in enumerate(rows, 1) if cells]
    if len(found) < least:
        _fail(path, 0, f"{len(found)} lines, expected {least} at least", "profile the model again")
    return found


def _numbers(path: Path, line: int, cells: Sequence[str]) -> list[float]:
    numbers = []
    for cell in cells:
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            _fail(path, line, f"got {cell!r}, expected a finite number from 0", "profile the model again")
        numbers.append(number)
    return numbers


def _fail(path: Path, line: int, what: str, fix: str) -> NoReturn:
    raise RhinoError(_ID, f"Aceso's tables: {what}", Place(str(path), line), fix=fix)
