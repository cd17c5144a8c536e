"""Compile a module for devices that are not there, in a process of its own.

XLA writes the scheduled program and its memory usage report as soon as buffers are assigned (`xla_dump_to`), and then
makes code, which on a TPU is nine tenths of the work. The process is ended there. Where those files are not found, it
runs to its end, and what it prints then is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rhino.ir.cluster.hardware import Cluster
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.graph.graph import DEVICE, HOST
from rhino.ir.hlo.compiled import Compiled, assigned_bytes, largest_buffers
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.memory_kinds import SIDES
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import module_mesh
from rhino.ir.plan.step_memory import local_bytes
from rhino.ir.program.staged_module import ONE_DEVICE, layouts
from rhino.runtime.aot.targets import CompileTarget, compile_target

_COMMAND: Final = "import sys; from rhino.runtime.aot.worker import main; sys.exit(main(sys.argv[1:]))"
_ENDINGS: Final = tuple(f"after_optimizations{rest}.txt" for rest in ("-buffer-assignment", "-memory-usage-report", ""))
_GIVEN: Final = "before_optimizations.txt"
_POLL_S: Final = 0.02
_ENVIRONMENT: Final = {
    "JAX_PLATFORMS": "cpu",  # the process itself computes nothing
    "TPU_SKIP_MDS_QUERY": "1",  # or libtpu asks Google's metadata server what machine this is
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # or libtpu takes a lock, for there is one chip to a process
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_LAST_LINES: Final = 4
_ONE_MEMORY: Final = ("cpu", "gpu")
"""Platforms whose compilers, without a device, take all memory for the device's (jaxlib 0.10.2)."""

MOST_S: Final = 1800.0
"""A compile is ended after so long: buffers of the largest programs that were tried are assigned in seconds."""


@dataclass
class Compiler:
    """Compiles for one target, nothing twice."""

    target: CompileTarget
    known: dict[str, Compiled] = field(default_factory=dict)

    def compile(self, code: bytes) -> Compiled:
        """Returns what the compiler makes of a module, given as bytecode.

        Raises:
            RhinoError: RHI-AOT-001 where the compiler refuses the module, or ends without a word, or where its files
                cannot be written.
        """
        key = hashlib.sha256(code).hexdigest()
        if key not in self.known:
            try:
                self.known[key] = _compiled(code, self.target)
            except OSError as error:
                raise RhinoError(
                    "RHI-AOT-001",
                    f"{self.target.compiler} is not asked, for its files cannot be written in the folder for temporary "
                    f"files (TMPDIR): {error}",
                    fix="free some space there, or name another folder in TMPDIR",
                ) from None
        return self.known[key]


def compiler_of(cluster: Cluster, mesh: Mesh, *, by_jit: bool = False) -> Callable[[bytes], Compiled] | str:
    """Returns what compiles modules for a mesh on a cluster; where nothing does, a line that says why.

    They are to be run by JAX's jit, or else by the executor.
    """
    target = compile_target(cluster, mesh.shape, by_jit=by_jit)
    return Compiler(target).compile if isinstance(target, CompileTarget) else target


def _compiled(code: bytes, target: CompileTarget) -> Compiled:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="rhino-aot-") as folder:
        dump, source, log = (Path(folder) / name for name in ("dump", "module.mlirbc", "log"))
        source.write_bytes(code)
        command = [
            sys.executable,
            "-P",
            "-c",
            _COMMAND,
            target.platform,
            target.device,
            json.dumps(target.mesh),
            json.dumps(target.by_jit),
            json.dumps(dict(target.options)),
        ]
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [*command, str(source), str(dump)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(target.platform),
            ) as process,
        ):
            try:
                found = _awaited(process, dump)
                status = process.poll()
            finally:
                process.kill()
                output = process.stdout.read().decode(errors="replace") if process.stdout else ""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        if found is None and process.returncode == ExitCode.OK:
            found = _printed(output, dump)
        if found is None:
            raise _refused(target, status, output, log.read_text(errors="replace"))
    peak_bytes, buffers, hlo = found
    unseen, there = _unseen(code) if target.platform in _ONE_MEMORY else ((), 0)
    is_finished = process.returncode == ExitCode.OK
    return Compiled(peak_bytes - there, buffers, hlo, target.compiler, is_finished, seconds, unseen)


def _unseen(code: bytes) -> tuple[tuple[int, ...], int]:
    """Returns the bytes of each transfer from host memory and to it, and of all that lies there, for one device."""
    module = ir.Module.parse(code, make_context())
    entry, found = entry_function(module.operation), module_mesh(module.operation)
    name, mesh = found or ("", ONE_DEVICE)
    sizes = {
        side: {
            number: local_bytes(replace(layout, memory=DEVICE), mesh)
            for number, layout in enumerate(layouts(entry, side, {name: mesh}))
            if layout.memory == HOST
        }
        for side in SIDES
    }
    taken_over = {ir.IntegerAttr(one[ALIAS]).value for one in boundary_attributes(entry, "arg") if ALIAS in one}
    kept = sum(size for number, size in sizes["res"].items() if number not in taken_over)
    return (*sizes["arg"].values(), *sizes["res"].values()), sum(sizes["arg"].values()) + kept


def _environment(platform: str) -> dict[str, str]:
    """Returns the environment of the process: libtpu ends it on flags of XLA that are not its own."""
    found = {**os.environ, **_ENVIRONMENT}
    if platform == "tpu":
        found.pop("XLA_FLAGS", None)
    return found


_Found = tuple[int, tuple[tuple[int, str], ...], str]


def _awaited(process: subprocess.Popen[bytes], dump: Path) -> _Found | None:
    """Returns what XLA has written once buffers are assigned; None where it ends before that."""
    sizes: tuple[int, ...] = ()
    end = time.monotonic() + MOST_S
    while True:
        ended = process.poll() is not None
        files = found_files(dump)
        last, sizes = sizes, tuple(path.stat().st_size for path in files or ())
        if files and (ended or (all(sizes) and sizes == last)) and (found := _read(files)):
            return found
        if ended or time.monotonic() > end:
            return None
        time.sleep(_POLL_S)


def found_files(dump: Path) -> tuple[Path, ...] | None:
    """Returns the buffer assignment, the memory usage report and the program of the module, once all are there.

    XLA:TPU compiles parts of it before, as modules of their own, which have no text from before optimizations.
    """
    given = sorted(path.name.partition(".")[0] for path in dump.rglob(f"*.{_GIVEN}"))
    if not given:
        return None
    found = [next(dump.rglob(f"{given[0]}.*{ending}"), None) for ending in _ENDINGS]
    return tuple(path for path in found if path) if all(found) else None


def _read(files: Sequence[Path]) -> _Found | None:
    """Returns what the files say; None where they are not complete, or read otherwise."""
    assignment, report, hlo = [path.read_text() for path in files]
    peak_bytes = assigned_bytes(assignment)
    if peak_bytes is None or not hlo.rstrip().endswith("\n}") or "\nENTRY " not in hlo:
        return None
    return peak_bytes, largest_buffers(report), hlo


def _printed(output: str, dump: Path) -> _Found | None:
    """Returns what the process has printed at its end: the bytes as JSON, and the program beside the files."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return (int(json.loads(lines[-1])["peak_bytes"]), (), (dump / "program.txt").read_text()) if lines else None


def _refused(target: CompileTarget, status: int | None, output: str, log: str) -> RhinoError:
    """Returns the error of a module that was not compiled; `status` is None where its process had not ended."""
    late = f"it took more than {MOST_S:g} s" if status is None else ""
    words = late or output.strip() or "\n".join(log.strip().splitlines()[-_LAST_LINES:])
    return RhinoError(
        "RHI-AOT-001",
        f"{target.compiler} does not compile the module: {words}",
        fix="leave --aot out, or name a cluster whose compiler takes the module",
    )
