"""`rhino-opt --auto-shard --aot`: the plan is chosen among those that the target's compiler has compiled."""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.mlir.bindings import ir
from rhino.passes.planner.aot import LOCALIZED, Comparer, Judged
from rhino.passes.planner.explain import compared_text
from rhino.passes.planner.request import MEMORY, MOST_COMPILES, budget_of
from rhino.passes.planner.unstaged_plan import ANNOTATED
from rhino.runtime.aot.compile import compiler_of


def compared(
    read: Callable[[], ir.Module], file: str, given: Mapping[str, str], options: Namespace, stderr: TextIO
) -> Judged:
    """Returns the best plan of a module by its compiler, and says on `stderr` what was compared.

    `read` gives the module, a new one each time; `given` are the options of the passes by name. What is printed is what
    is compiled: the local program with --localize, else the annotated one; where a plan alone is written, both.

    Raises:
        RhinoError: as `Comparer.run`.
    """
    cluster, writes_plan = load_cluster(given["cluster"]), options.plan and options.output == "-"

    def on_compile(what: str) -> None:
        if stderr.isatty():
            print(f"rhino-opt: compiling {what}", file=stderr)

    comparer = Comparer(
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
        on_compile=on_compile,
    )
    judged = comparer.run()
    plan = judged.plan()
    if judged.missing:
        print(f"rhino-opt: the plan is as predicted, not compiled: {judged.missing}", file=stderr)
    elif plan.compared:
        print("\n".join(compared_text(plan.compared)), file=stderr)
    return judged
