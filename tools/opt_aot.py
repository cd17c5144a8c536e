"""`rhino-opt --aot`: the plan is chosen among those that the target's compiler has compiled."""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.mlir.bindings import ir
from rhino.ir.plan.plan import Comparison
from rhino.passes.planner.aot import LOCALIZED, Comparer, Judged
from rhino.passes.planner.aot_parallel import Compiles, compilers_of
from rhino.passes.planner.explain import compared_text
from rhino.passes.planner.request import MEMORY, MOST_COMPILES, budget_of
from rhino.passes.planner.unstaged_plan import ANNOTATED
from rhino.passes.sharding.planning_pass import DEFAULT_CLUSTER
from rhino.runtime.aot.compile import compiler_of


def compared(
    read: Callable[[], ir.Module], file: str, given: Mapping[str, str], options: Namespace, stderr: TextIO
) -> Judged:
    """Returns the best plan of a module by its compiler, and says on `stderr` what was compared.

    Raises:
        RhinoError: as `Comparer.run`.
    """
    judged = comparer_of(read, file, given, options, stderr).run()
    plan = judged.plan()
    if judged.missing:
        _say_missing(judged.missing, stderr)
    elif plan.compared:
        say_compared(plan.compared, stderr)
    if judged.is_interrupted:
        print("rhino-opt: interrupted: the plan is the best of those that were compiled before", file=stderr)
    return judged


def comparer_of(
    read: Callable[[], ir.Module], file: str, given: Mapping[str, str], options: Namespace, stderr: TextIO
) -> Comparer:
    """Returns what compares plans of a module in one program.

    `read` gives the module, a new one each time; `given` are the options of the passes by name. What is printed is what
    is compiled: the local program with --localize, else the annotated one; where a plan alone is written, both.
    """
    cluster, writes_plan = load_cluster(given["cluster"]), options.plan and options.output == "-"
    return Comparer(
        read=read,
        name=Path(file).name,
        file=file,
        options=given,
        cluster=cluster,
        budget_bytes=float(budget_of(given["cluster"], given.get("budget"))),
        compiler_for=functools.partial(compiler_of, cluster),
        forms=(LOCALIZED, ANNOTATED) if writes_plan else (LOCALIZED,) if options.localize else (ANNOTATED,),
        memory_only=options.aot == MEMORY,
        most=options.compiles or MOST_COMPILES,
        on_compile=functools.partial(_say_compile, stderr),
    )


def compiles_of(options: Namespace, stderr: TextIO) -> Compiles | None:
    """Returns what has plans compiled that may be in stages, if that is asked for.

    Returns None where nothing compiles for the cluster; a line on `stderr` says why.
    """
    if not options.aot:
        return None
    cluster = options.cluster or DEFAULT_CLUSTER
    found = compilers_of(load_cluster(cluster), compiler_of)
    if isinstance(found, str):
        _say_missing(found, stderr)
        return None
    budget, most = budget_of(cluster, options.budget), options.compiles or MOST_COMPILES
    return Compiles(found, budget, most, options.aot == MEMORY, functools.partial(_say_compile, stderr))


def say_compared(found: Comparison, stderr: TextIO) -> None:
    """Says what was compiled, beside what was predicted."""
    print("\n".join(compared_text(found)), file=stderr)


def _say_compile(stderr: TextIO, what: str) -> None:
    if stderr.isatty():
        print(f"rhino-opt: compiling {what}", file=stderr)


def _say_missing(missing: str, stderr: TextIO) -> None:
    print(f"rhino-opt: the plan is as predicted, not compiled: {missing}", file=stderr)
