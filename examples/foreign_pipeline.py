"""Our passes in a pass manager of your own, between MLIR's and Shardy's: what a compiler that embeds Rhino does.

    python examples/export.py mlp -o step.mlir
    python examples/foreign_pipeline.py step.mlir --cluster=v100x8 -o step.reshards.mlir
    python examples/foreign_pipeline.py step.mlir --print-ir-after-all 2>&1 >/dev/null | grep 'IR Dump'

What comes out has every sharding closed and every change of sharding as an op of its own (`sdy.reshard`,
`sdy.all_reduce`): ready for whoever lowers Shardy. Printing, timing and verification between passes are MLIR's, for our
passes as for its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jax.extend.mlir import ir, passmanager

import rhino

CLEANUP: Final = ("cse", "canonicalize")
SHARDY: Final = (
    # Fills in what has no sharding; what the search chose is closed, and stays.
    "sdy-propagation-pipeline",
    "sdy-close-shardings",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
)


def build(context: ir.Context, cluster: str, remarks: rhino.Remarks) -> passmanager.PassManager:
    """Returns the pipeline; our passes leave what they have to say in `remarks`."""
    manager = passmanager.PassManager("builtin.module", context)
    rhino.add_to(manager, rhino.Normalize(), remarks)
    for text in CLEANUP:
        manager.add(text)
    manager.add("func.func(sdy-populate-op-sharding-rules)")
    rhino.add_to(manager, rhino.ChooseShardings(cluster=cluster), remarks)
    manager.add("func.func(sdy-drop-sharding-rules)")
    for text in SHARDY:
        manager.add(text)
    rhino.add_to(manager, rhino.Strip(), remarks)
    return manager


def shard(data: bytes, name: str, cluster: str, print_ir: bool = False) -> tuple[ir.Module, rhino.Remarks]:
    """Returns the module in `data` after the pipeline, and the remarks.

    With `print_ir`, stderr gets the IR after every pass.
    """
    context = rhino.make_context()
    module = rhino.read_module(data, name, context)
    remarks = rhino.Remarks(name)
    manager = build(context, cluster, remarks)
    if print_ir:
        context.enable_multithreading(False)  # MLIR prints whole modules from one thread alone
        manager.enable_ir_printing(print_module_scope=True)
    manager.run(module.operation)
    return module, remarks


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code: that of the error if there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("file", metavar="FILE", help="the StableHLO module to shard")
    parser.add_argument("--cluster", default="cpu8", help="a preset's name or a cluster file (default cpu8)")
    parser.add_argument(
        "--print-ir-after-all", action="store_true", help="print the module after every pass, on stderr"
    )
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="where to write, or - for stdout (default)")
    options = parser.parse_args(argv)
    try:
        module, remarks = shard(
            Path(options.file).read_bytes(), options.file, options.cluster, options.print_ir_after_all
        )
    except rhino.RhinoError as error:
        print(error.render(), file=sys.stderr)
        return int(error.exit_code)
    print(*remarks.items, sep="\n", file=sys.stderr)
    text = f"{module}\n"
    if options.output == "-":
        sys.stdout.write(text)
    else:
        Path(options.output).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
