"""Write the StableHLO text of argv[1] as a portable artifact at argv[2]."""

import sys
from pathlib import Path

from rhino.ir.mlir.bindings import ir, make_context, serialize_portable_artifact, stablehlo

module = ir.Module.parse(Path(sys.argv[1]).read_text(), make_context())
Path(sys.argv[2]).write_bytes(serialize_portable_artifact(module, stablehlo.get_minimum_version()))
