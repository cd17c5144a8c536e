"""Refuse programs that cannot be planned or run.

The planner refuses an op that would mean something else on several devices; other ops are refused before a run.
"""

from __future__ import annotations

from typing import Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.collective_stats import KINDS
from rhino.ir.graph.rules import RULE
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.memory_kinds import placement_of
from rhino.ir.mlir.reader import walk

GSPMD: Final = "mhlo.sharding"
USE_SHARDY: Final = "export the program with Shardy's shardings (jax_use_shardy_partitioner)"
_TOKEN: Final = "!stablehlo.token"


def _stablehlo(*names: str) -> frozenset[str]:
    return frozenset(f"stablehlo.{name}" for name in names)


_PARALLEL: Final = _stablehlo(
    *KINDS, "collective_broadcast", "cross-replica-sum", "partition_id", "replica_id", "async_start", "async_done"
)
_SHARDY: Final = frozenset({"sdy.sharding_constraint", "sdy.manual_computation"})
_PLAIN: Final = frozenset({"sdy.named_computation", "sdy.propagation_barrier", "sdy.reshard"})
_OUTSIDE: Final = _stablehlo("infeed", "outfeed", "send", "recv")
_UNSEEDED: Final = _stablehlo("rng")
_SIZED_BY_VALUES: Final = _stablehlo(
    "real_dynamic_slice", *(f"dynamic_{op}" for op in ("broadcast_in_dim", "conv", "gather", "iota", "pad", "reshape"))
)
_OUTSIDE_FIX: Final = "pass what it moves as an argument or a result"
_UNSEEDED_FIX: Final = "draw from a key, with rng_bit_generator or jax.random"
_NO_CALLBACKS: Final = "take callbacks (jax.debug.print, jax.pure_callback, ...) out of the program"
_RULE_FIX: Final = (
    "give it a sharding rule (--op-rules) if that is as it should be, or has_side_effect = false if it has none"
)
_WHY: Final = (
    (
        "RHI-READ-003",
        _PARALLEL,
        "is of a program for several devices",
        "plan for the program of one device, from before it was made parallel",
    ),
    (
        "RHI-READ-003",
        _OUTSIDE,
        "communicates with another program, and each device would do so",
        _OUTSIDE_FIX,
    ),
    ("RHI-READ-003", _UNSEEDED, "draws different numbers on each device", _UNSEEDED_FIX),
    (
        "RHI-READ-004",
        _SIZED_BY_VALUES,
        "has sizes that are values, not constants",
        "export the program for fixed shapes, or refine it",
    ),
)
"""Ids, the ops that get them, why, and what to do."""
_REFUSED: Final = {name: (identifier, why, fix) for identifier, names, why, fix in _WHY for name in sorted(names)}


def refuse_foreign(op: ir.Operation, file: str) -> None:
    """Refuses an op that differs when each of several devices runs it, or whose sharding is in foreign terms.

    Raises:
        RhinoError: RHI-READ-003, RHI-READ-004, RHI-SHARD-001.
    """
    name = op.name
    if name in _REFUSED:
        identifier, why, fix = _REFUSED[name]
        raise RhinoError(identifier, f"'{name}' {why}", place_of(op.location, file), fix=fix)
    if _calls_back(op):
        what = f"'{name}' calls {_target(op)}, in the process that made the program: each device would call it"
        raise RhinoError("RHI-READ-003", what, place_of(op.location, file), fix=_NO_CALLBACKS)
    if _acts(op) and RULE not in op.attributes and placement_of(op) is None:
        what = f"'{name}' of {_target(op)} has a side effect: each of several devices would have it"
        raise RhinoError("RHI-READ-003", what, place_of(op.location, file), fix=_RULE_FIX)
    for result in op.results:
        kind = result.type
        if not isinstance(kind, ir.RankedTensorType) and str(kind) != _TOKEN:
            what = f"'{name}' gives a {kind}, no tensor"
            raise RhinoError(
                "RHI-READ-003", what, place_of(op.location, file), fix="give each of its parts as a result"
            )
    if name.startswith("sdy.") and name not in _SHARDY:
        fix = "convert it first, with --rhino-normalize" if name in _PLAIN else "plan for the program without it"
        raise cannot_honour(f"'{name}'", fix, place_of(op.location, file))
    if GSPMD in op.attributes:
        raise cannot_honour(f"'{name}' with a GSPMD sharding", USE_SHARDY, place_of(op.location, file))


def refuse_unrunnable(module: ir.Module, file: str) -> None:
    """Refuses a program that would wait for another one, or whose result says nothing.

    Raises:
        RhinoError: RHI-RUN-001.
    """
    for op in walk(module.operation):
        place = place_of(op.location, file)
        if op.name in _OUTSIDE:
            raise RhinoError(
                "RHI-RUN-001",
                f"'{op.name}' exchanges data with another program, which a plan does not run",
                place,
                fix=_OUTSIDE_FIX,
            )
        if op.name in _UNSEEDED:
            raise RhinoError(
                "RHI-RUN-001",
                f"'{op.name}' draws different numbers in each run, so no two runs agree",
                place,
                fix=_UNSEEDED_FIX,
            )
        if _calls_back(op):
            what = f"'{op.name}' calls {_target(op)}, in the process that made the program, which is not there"
            raise RhinoError("RHI-RUN-001", what, place, fix=_NO_CALLBACKS)


def _calls_back(op: ir.Operation) -> bool:
    return op.name == "stablehlo.custom_call" and "callback" in _target(op)


def _acts(op: ir.Operation) -> bool:
    return (
        op.name == "stablehlo.custom_call"
        and "has_side_effect" in op.attributes
        and ir.BoolAttr(op.attributes["has_side_effect"]).value
    )


def _target(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value)


def cannot_honour(what: str, fix: str, place: Place) -> RhinoError:
    """Returns the error for a constraint that is not understood."""
    return RhinoError("RHI-SHARD-001", f"{what} cannot be honoured", place, fix=fix)
