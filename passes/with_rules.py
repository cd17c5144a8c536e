"""Sharding rules for the time of a pass that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rhino.ir.graph.rules import RULE
from rhino.ir.mlir.bindings import ir, passmanager
from rhino.ir.mlir.reader import walk
from rhino.ir.program.program import is_ruled


@contextmanager
def with_rules(module: ir.Operation) -> Iterator[None]:
    """Gives the ops of `module` their rules, and takes them away at the end; a module that has rules keeps its own.

    Passes run on both sides: hold no handle of an op across either.
    """
    if any(map(is_ruled, walk(module))):
        yield
        return
    run_on_functions(module, "sdy-populate-op-sharding-rules")
    try:
        yield
    finally:
        run_on_functions(module, "sdy-drop-sharding-rules")


def renew_rules(module: ir.Operation) -> None:
    """Gives rules to the ops that lost theirs by being rewritten, in a module that has rules at all."""
    if any(RULE in op.attributes for op in walk(module)):
        run_on_functions(module, "sdy-populate-op-sharding-rules")


def run_on_functions(module: ir.Operation, name: str) -> None:
    """Runs one of MLIR's own passes on every function of a module."""
    manager = passmanager.PassManager.parse(f"builtin.module(func.func({name}))", module.context)
    manager.enable_verifier(False)  # takes longer than they do
    manager.run(module)
