"""Read a module from bytes, in any of the formats that a front end writes StableHLO in.

These are text, MLIR bytecode, a portable artifact, and a `jax.export` blob.

Errors: RHI-READ-001 not one of the formats, RHI-READ-002 does not parse or verify, RHI-READ-003 a dialect that is not
supported, RHI-READ-004 dynamic shapes, RHI-READ-005 no entry function, RHI-READ-009 an impossible donation,
RHI-READ-010 a tensor that is too large.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import Any, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.elements import element_bytes
from rhino.ir.mlir.bindings import deserialize_portable_artifact, func, ir, stablehlo
from rhino.ir.mlir.donation import check_aliases
from rhino.ir.mlir.jaxlib_faults import refuse_ops, refuse_text
from rhino.ir.mlir.locations import place_of
from rhino.ir.plan.stage_programs import PARTS

_BYTECODE_MAGIC: Final = b"ML\xefR"
_PORTABLE_PRODUCER: Final = b"StableHLO_v"
_DIALECTS: Final = frozenset({"builtin", "func", "stablehlo", "chlo", "sdy"})
MOST_BYTES: Final = 1 << 56
"""Bytes of a tensor, all devices together (64 PiB).

More than the memory of any cluster, and sums of sizes stay exact in 64 bits.
"""
_FORMATS: Final = "StableHLO text, MLIR bytecode, a StableHLO portable artifact or a serialized jax.export"


def read_module(data: bytes, name: str, context: ir.Context) -> ir.Module:
    """Returns the module in `data`, verified, of static shapes and with donations that are possible.

    `name` is the file's name for messages.
    """
    with context:
        try:
            module = _parse(data, name, context)
        except ir.MLIRError as error:
            raise _parse_error(error, name) from None
        ops = walk(module.operation)
        _check_dialects(ops, name)
        _check_types(ops, name)
        refuse_ops(ops, name)
        for function in functions_of(module):
            check_aliases(function, name)
    return module


def entry_function(module: ir.Module | ir.Operation, name: str = "") -> func.FuncOp:
    """Returns the function that is the program: `main`, or else the only public one."""
    public = [op for op in functions_of(module) if "sym_visibility" not in op.attributes or _visibility(op) == "public"]
    mains = [op for op in public if op.name.value == "main"] or public
    if len(mains) != 1 or mains[0].is_external:
        if PARTS in module.operation.attributes:
            raise RhinoError(
                "RHI-READ-005",
                "the module is a step in stages: a program for each part, in no order yet, and no entry",
                Place(name),
                fix="start from the whole step: rhino-opt --auto-parallel --plan=FOLDER orders its parts, "
                "and rhino-run runs that folder",
            )
        names = ", ".join(f"@{op.name.value}" for op in public) or "none"
        raise RhinoError(
            "RHI-READ-005",
            f"the module needs one public function with a body as its entry; its public functions: {names}",
            Place(name),
            fix="name the entry @main, or make the others private",
        )
    return mains[0]


def functions_of(module: ir.Module | ir.Operation) -> list[func.FuncOp]:
    """Returns the functions of a module."""
    return [op for op in module.operation.regions[0].blocks[0].operations if isinstance(op, func.FuncOp)]


def _visibility(op: func.FuncOp) -> str:
    return str(ir.StringAttr(op.attributes["sym_visibility"]).value)


def _parse(data: bytes, name: str, context: ir.Context) -> ir.Module:
    if data.startswith(_BYTECODE_MAGIC):
        return _parse_bytecode(data, name, context)
    if _BYTECODE_MAGIC in data:
        return _parse_bytecode(_exported_bytecode(data, name), name, context)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _not_a_module(name, "it is binary, and has none of the known headers") from None
    if not text.strip():
        raise _not_a_module(name, "it is empty")
    if not re.search(r"\bmodule\b|\bfunc\.func\b", text):
        raise _not_a_module(name, "it is text without a module or a func.func")
    refuse_text(text, name)
    return ir.Module.parse(text)


def _parse_bytecode(data: bytes, name: str, context: ir.Context) -> ir.Module:
    try:
        if data[len(_BYTECODE_MAGIC) :][:64].find(_PORTABLE_PRODUCER) >= 0:
            module: ir.Module = deserialize_portable_artifact(data, context)
            return module
        return ir.Module.parse(data)
    except (ValueError, RuntimeError) as error:
        if isinstance(error, ir.MLIRError):
            raise
        raise RhinoError(
            "RHI-READ-002",
            f"the bytecode does not parse: {str(error).splitlines()[0]}",
            Place(name),
            fix="check that the file is whole, and that it was not written by a newer StableHLO",
        ) from None


def _exported_bytecode(data: bytes, name: str) -> bytes:
    try:
        from jax import export  # noqa: PLC0415 - most inputs do not need it, and it is slow to load
    except ImportError as error:
        raise RhinoError(
            "RHI-READ-001", f"reading a jax.export blob: {error}", Place(name), fix="install jax, or give StableHLO"
        ) from None
    try:
        return bytes(export.deserialize(bytearray(data)).mlir_module_serialized)
    except ModuleNotFoundError as error:
        raise RhinoError(
            "RHI-READ-001",
            f"reading a jax.export blob needs the package {error.name}",
            Place(name),
            fix=f"pip install {error.name}",
        ) from None
    except Exception as error:  # flatbuffers raises struct.error, IndexError, ... on a damaged blob
        raise _not_a_module(name, f"it holds MLIR bytecode, but is no jax.export blob ({error})") from None


def _not_a_module(name: str, why: str) -> RhinoError:
    return RhinoError("RHI-READ-001", f"not a module: {why}", Place(name), fix=f"give {_FORMATS}")


def _parse_error(error: ir.MLIRError, name: str) -> RhinoError:
    diagnostics = error.error_diagnostics
    if not diagnostics:
        return RhinoError("RHI-READ-002", f"the module does not parse: {error}", Place(name), fix=f"give {_FORMATS}")
    first = diagnostics[0]
    notes = tuple(str(note.message).strip() for note in first.notes)
    message = str(first.message).strip()
    unknown = re.search(r"[Dd]ialect `?(\w+)'? not found|unregistered (?:dialect|operation)", message)
    if unknown:
        return _unsupported_dialect(message, place_of(first.location, name))
    return RhinoError(
        "RHI-READ-002",
        f"the module does not parse: {message}",
        place_of(first.location, name),
        notes[:3],
        "correct the module there, or export it again with the versions of jaxlib and StableHLO that are installed",
    )


def _unsupported_dialect(what: str, place: Place) -> RhinoError:
    return RhinoError(
        "RHI-READ-003",
        what,
        place,
        fix=f"convert the program to StableHLO first (dialects read: {', '.join(sorted(_DIALECTS))})",
    )


def _check_dialects(ops: Iterable[ir.Operation], name: str) -> None:
    known: set[str] = set()
    for op in ops:
        if op.name in known:
            continue
        if op.name.split(".", 1)[0] not in _DIALECTS:
            raise _unsupported_dialect(
                f"op '{op.name}' is of a dialect that is not supported", place_of(op.location, name)
            )
        known.add(op.name)


def _check_types(ops: Iterable[ir.Operation], name: str) -> None:
    seen: set[ir.Type] = set()
    for op in ops:
        values: list[ir.Value[Any]] = list(op.results)
        values += [argument for region in op.regions for block in region for argument in block.arguments]
        for value in values:
            kind = value.type
            if kind not in seen and isinstance(kind, ir.RankedTensorType):
                _check_type(kind, op, name)
            seen.add(kind)


def _check_type(kind: ir.RankedTensorType, op: ir.Operation, name: str) -> None:
    if not kind.has_static_shape:
        raise RhinoError(
            "RHI-READ-004",
            f"'{op.name}' has a value of dynamic shape, {kind}",
            place_of(op.location, name),
            ("shardings are chosen for sizes that are known",),
            "export the program for fixed shapes, or refine it (jax.export without symbolic dimensions)",
        )
    num_bytes = prod(kind.shape) * element_bytes(str(kind.element_type))
    if num_bytes > MOST_BYTES:
        raise RhinoError(
            "RHI-READ-010",
            f"'{op.name}' has a value of {num_bytes} bytes, {kind}, expected at most {MOST_BYTES}",
            place_of(op.location, name),
            fix="correct the sizes: no cluster has the memory for it",
        )


def maker_of(value: ir.Value[Any]) -> ir.Operation | None:
    """Returns the op whose result a value is, None for an argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def end_of(block: ir.Block) -> ir.Operation:
    """Returns the op that ends a block."""
    ops = block.operations
    last: ir.Operation = ops[len(ops) - 1].operation  # makes no object of those before it
    return last


def aliases_of(op: ir.Operation) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of an operand and a result of a custom call that share memory, by number."""
    given: Any = op.attributes.get("output_operand_aliases", ())
    found = [stablehlo.OutputOperandAlias(one) for one in given]
    return tuple((one.operand_index, next(iter(one.output_tuple_indices), 0)) for one in found)


def captured_by(op: ir.Operation) -> list[ir.Value[Any]]:
    """Returns the values that an op's regions read from around it, in order of first use."""
    inner = [one for one in walk(op) if one != op]
    own: set[ir.Value[Any]] = {result for one in inner for result in one.results}
    own |= {
        argument for one in (op, *inner) for region in one.regions for block in region for argument in block.arguments
    }
    return list({value: None for one in inner for value in one.operands if value not in own})


def walk(op: ir.Operation) -> list[ir.Operation]:
    """Returns `op` and every op nested in it, in program order."""
    if not len(op.regions):
        return [op]
    found: list[ir.Operation] = []

    def take(one: ir.Operation) -> ir.WalkResult:
        found.append(one)
        return ir.WalkResult.ADVANCE

    try:
        op.walk(take, ir.WalkOrder.PRE_ORDER)  # the bindings' own walk: in Python it takes twice as long
    except RuntimeError as error:  # so the bindings pass on what is raised in `take`, which is a signal's doing alone
        raise KeyboardInterrupt from error
    found[0] = op  # the same object, too
    return found
