"""What experts would write down by hand: pins on the arguments of a model, one role for each axis of the mesh.

    dp       data parallel: the batch is split, all state is whole
    zero-1   the optimizer's state is split as well (gradients may be: ZeRO-2)
    zero-3   the parameters are split too
    tp       Megatron: column and row pairs, vocabulary; the batch is whole, and so are norms
    tp+sp    the same, with norms and residuals split along the sequence
    ep       GShard: the batch is split, and experts' weights by expert
    head     the batch is split, and the last layer's weights by class

A role says where the batch, the parameters and the optimizer's state lie, and for sequence parallelism where norms do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.named_tensors import argument_tensors

# Models


@dataclass(frozen=True, slots=True)
class Case:
    """A model and where its experts split it: patterns of weights' names.

    `columns` are split along their last dim, `rows` along the one before; `experts` along their first; `classes` are
    the last layer's. `norms` are the ops, by location, of whose results [batch, sequence, ...] sequence parallelism
    speaks.
    """

    model: str
    config: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    norms: str = ""

    def roles(self) -> tuple[str, ...]:
        """Returns the roles beside data parallelism that the model has."""
        found = {"tp": self.columns, "tp+sp": self.columns and self.norms, "ep": self.experts, "head": self.classes}
        return tuple(role for role, has in found.items() if has)


_ATTENTION: Final = ("*.q", "*.k", "*.v")
_COLUMNS: Final = (*_ATTENTION, "*.up", "*.up_bias")
_ROWS: Final = ("*.out", "*.down", "*.embed")
_NORMS: Final = "loc:*jvp(*)*/rsqrt"

_LLAMA: Final = {
    "layers": 1,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 32000,
    "seq": 2048,
    "batch": 8,
}
"""The sizes of one layer of a LLaMA, and of Mixtral, which has the same."""

CASES: Final[dict[str, Case]] = {
    "gpt": Case("gpt", {"layers": 2}, _COLUMNS, _ROWS, norms=_NORMS),
    "moe": Case("moe", {"layers": 2}, _COLUMNS, _ROWS, ("*.experts.*",), norms=_NORMS),
    "vgg-1m": Case(
        "vgg",
        {"classes": 1_000_000, "batch": 256, "dropout": 0.0},
        ("*.classifier.0.*", "*.classifier.2.*"),
        ("*.classifier.1.weight",),
        classes=("*.classifier.2.*",),
    ),
    "dnabert": Case(
        "bert",
        {"layers": 2, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 4096, "seq": 2048, "convs": 1, "batch": 8},
        _COLUMNS,
        _ROWS,
        norms=_NORMS,
    ),
    "unet": Case(
        "unet",
        {"multipliers": (1, 2, 2, 4), "blocks": 1, "batch": 128},
        ("*.conv1.*", "*.time.weight", "*.time.bias", "*.norm2.*", "*.q", "*.k", "*.v"),
        ("*.conv2.weight", "*.out"),
    ),
    "wide-resnet": Case(
        "resnet",
        {"blocks": (1, 1, 1, 1), "channels": 320, "width_factor": 2, "classes": 1024, "batch": 32},
        ("*.middle.weight", "*.middle.norm.*", "*.head.*"),
        ("*.expand.weight",),
        classes=("*.head.*",),
    ),
    "t5": Case("t5", {"layers": 1}, (*_ATTENTION, "*.up"), _ROWS, norms=_NORMS),
    "wav2vec2": Case("wav2vec2", {"layers": 2, "batch": 8}, _COLUMNS, ("*.out", "*.down")),
    "gnmt": Case("gnmt", {"layers": 2, "batch": 1024}),
    "mamba": Case(
        "mamba",
        {"layers": 2, "seq": 1024},
        ("*.in", "*.gate", "*.window", "*.window_bias", "*.layers.*.step", "*.step_bias", "*.skip"),
        ("*.layers.*.out", "*.select", "*.log_rates"),
    ),
    "dlrm": Case("dlrm", {"tables": (1 << 20,) * 8, "batch": 65536}, experts=("*.tables.*",)),
    "mixtral": Case(
        "mixtral",
        _LLAMA,
        (*_ATTENTION, "*.up", "*.gate", "*.head"),
        _ROWS,
        ("*.experts.*",),
        norms=_NORMS,
    ),
    "llama": Case(
        "llama",
        _LLAMA,
        (*_ATTENTION, "*.up", "*.gate", "*.head"),
        _ROWS,
        norms=_NORMS,
    ),
}


# What experts say

DATA: Final = ("dp", "zero-1", "zero-3")

Role = Callable[[Case, str, Sequence[int], int], int | None]
"""Of a case, the dotted name of an argument, its shape as other axes leave it and the axis's size.

The dim that is split, or None.
"""


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Says whether one of the patterns speaks of a name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _largest(shape: Sequence[int], size: int) -> int | None:
    """The largest dim that an axis divides."""
    found = [(-extent, dim) for dim, extent in enumerate(shape) if extent and extent % size == 0]
    return min(found)[1] if found else None


def _batch(_case: Case, name: str, _shape: Sequence[int], _size: int) -> int | None:
    return None if name.startswith("state.") else 0


def _zero_1(case: Case, name: str, shape: Sequence[int], size: int) -> int | None:
    return _largest(shape, size) if name.startswith(("state.mu.", "state.nu.")) else _batch(case, name, shape, size)


def _zero_3(case: Case, name: str, shape: Sequence[int], size: int) -> int | None:
    return _largest(shape, size) if name.startswith("state.") else _batch(case, name, shape, size)


def _megatron(case: Case, name: str, shape: Sequence[int], _size: int) -> int | None:
    if matches(name, case.experts):
        return None
    return len(shape) - 1 if matches(name, case.columns) else len(shape) - 2 if matches(name, case.rows) else None


def _by_expert(case: Case, name: str, shape: Sequence[int], size: int) -> int | None:
    # behind the layers' dim, where layers are stacked
    return max(len(shape) - 3, 0) if matches(name, case.experts) else _batch(case, name, shape, size)


def _by_class(case: Case, name: str, shape: Sequence[int], size: int) -> int | None:
    return len(shape) - 1 if matches(name, case.classes) else _batch(case, name, shape, size)


ROLES: Final[dict[str, Role]] = {
    "dp": _batch,
    "zero-1": _zero_1,
    "zero-3": _zero_3,
    "tp": _megatron,
    "tp+sp": _megatron,
    "ep": _by_expert,
    "head": _by_class,
}


def experts(case: Case, num_axes: int) -> Iterator[tuple[str, ...]]:
    """Yields the roles of the axes, outermost first.

    Each role comes alone; on two axes each other role comes inside of data parallelism, too.
    """
    own = case.roles()
    yield from ((role,) * num_axes for role in (*DATA, *own))
    if num_axes == 2:
        yield from ((data, role) for data in DATA for role in own)


def pins(case: Case, module: ir.Module, mesh: Mesh, roles: Sequence[str]) -> str:
    """Returns what an expert says, as a file of constraints.

    It says of every dim of every argument how it is split, and along which dim norms are.
    """
    rows = []
    for tensor in argument_tensors(entry_function(module.operation), "expert"):
        left = list(tensor.shape)
        dims: list[list[str]] = [[] for _ in left]
        # ZeRO takes what models' axes leave
        for (axis, size), role in reversed(list(zip(mesh.axes, roles, strict=True))):
            dim = ROLES[role](case, tensor.names[0], left, size)
            if dim is not None and left[dim] % size == 0:
                left[dim] //= size
                dims[dim].insert(0, axis)
        rows.append(_pin(tensor.names[0], dims))
    if case.norms:
        rows += _norms(case, [axis for (axis, _), role in zip(mesh.axes, roles, strict=True) if role == "tp+sp"])
        rows += [_whole(case, axis) for (axis, _), role in zip(mesh.axes, roles, strict=True) if role == "tp"]
    return "\n".join(rows)


def _pin(name: str, dims: Sequence[Sequence[str]]) -> str:
    sharding = ", ".join(f"{{{', '.join(axes)}}}" for axes in dims)
    return f"[[pin]]\nname = '{name}'\nsharding = '[{sharding}]'"


def _norms(case: Case, axes: Sequence[str]) -> list[str]:
    """Norms of a sequence [batch, sequence, ...] are split along it on the axes, if any."""
    return [f"[[pin]]\nname = '{case.norms}'\nsharding = '[{{?}}, {{{', '.join(axes)}, ?}}, {{?}}]'"] if axes else []


def _whole(case: Case, axis: str) -> str:
    """Norms are not split along an axis."""
    return f"[[forbid]]\nname = '{case.norms}'\naxis = '{axis}'"
