"""A finished program inside of JAX, as a primitive.

The primitive lowers to a call of the program, so that jit runs, donates, caches and places as usual.

This is the one place beside `rhino.ir.mlir.bindings` that sees MLIR of JAX's own making: what a primitive lowers to is
built in JAX's context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from jax.extend.core import Primitive
from jax.interpreters import mlir

from rhino.ir.mlir.bindings import func, ir, sdy

_ENTRY: Final = "main"


@dataclass(frozen=True, eq=False)
class Embedded:
    """A module as bytecode, whose entry takes and gives global arrays, and JAX's abstract values of its results."""

    name: str
    code: bytes
    out_avals: tuple[Any, ...]

    def __call__(self, *leaves: Any) -> Sequence[Any]:  # noqa: ANN401 - arrays, or what JAX traces in their place
        """Returns the results of the program."""
        results: Sequence[Any] = _program.bind(*leaves, embedded=self)
        return results


_program: Final = Primitive("rhino_program")
_program.multiple_results = True
_program.def_abstract_eval(lambda *_, embedded: embedded.out_avals)


def _lower(context: mlir.LoweringRuleContext, *leaves: Any, embedded: Embedded) -> list[Any]:  # noqa: ANN401 - values of MLIR
    outer = context.module_context
    with outer.module.context:
        module = ir.Module.parse(embedded.code)
        for op in list(module.body.operations):
            if isinstance(op, sdy.MeshOp) and not sdy.MeshAttr(op.attributes["mesh"]).axes:
                op.operation.erase()
        name = mlir.merge_mlir_modules(outer.module, embedded.name, module, dst_symtab=outer.symbol_table)
        entry = cast(func.FuncOp, outer.symbol_table[name])
        call = func.CallOp(entry.type.results, ir.FlatSymbolRefAttr.get(name), leaves)
        return list(call.results)


mlir.register_lowering(_program, _lower)


def lower_as(primitive: Primitive, function: Callable[..., Any]) -> None:
    """Makes a primitive of one result lower to what `function` of arrays does."""
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
