"""For what a cluster's programs are compiled, and whether the compiler for that is installed.

platform    compiled by                                     installed with
cpu         jaxlib itself                                   -
tpu         libtpu, for a topology such as v5e:2x4          rhino-parallel[tpu]
gpu         jaxlib's CUDA plugin, for a described device    rhino-parallel[cuda]
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from rhino.ir.cluster.hardware import Cluster, CompileOption, Platform
from rhino.runtime.aot.gpus import cards, target_config

_MODULES: Final[dict[Platform, tuple[str, ...]]] = {"cpu": (), "tpu": ("libtpu",), "gpu": ("jax_cuda12_plugin",)}
_PACKAGES: Final[dict[Platform, tuple[str, str]]] = {
    "cpu": ("XLA:CPU of jaxlib", "jaxlib"),
    "tpu": ("XLA:TPU of libtpu", "libtpu"),
    "gpu": ("XLA:GPU of jax-cuda12-plugin", "jax-cuda12-plugin"),
}
_EXTRAS: Final[dict[Platform, str]] = {"cpu": "", "tpu": "tpu", "gpu": "cuda"}


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """For what to compile: a platform, what its compiler calls the devices, and the mesh over them.

    `device` is a topology for TPUs ("v5e:2x4"), the description of one device for GPUs (text of a
    `GpuTargetConfigProto`), and empty for a host. `by_jit` says that JAX's jit will run the program, and not the
    executor: on a host that orders ops otherwise. `options` are of the compiler.
    """

    platform: Platform
    device: str
    mesh: tuple[int, ...]
    by_jit: bool = False
    options: tuple[CompileOption, ...] = ()

    @property
    def compiler(self) -> str:
        """The compiler and its version."""
        name, package = _PACKAGES[self.platform]
        return f"{name} {version(package)}"


def compile_target(cluster: Cluster, mesh: tuple[int, ...], *, by_jit: bool = False) -> CompileTarget | str:
    """Returns for what the programs of a mesh on a cluster are compiled; where that cannot be, a line that says why.

    A program on unlike GPUs is compiled for the slowest.
    """
    platform = cluster.device.platform
    if missing := _missing(platform):
        return missing
    if platform == "cpu":
        return CompileTarget(platform, "", mesh, by_jit)
    if cluster.groups and platform == "tpu":
        return f"cluster {cluster.name!r} has unlike TPUs: a topology is of one kind"
    if cluster.groups:
        slowest = min(cluster.groups, key=lambda one: one.device.matmul_flops_per_s("f32"))
        return compile_target(slowest, mesh, by_jit=by_jit)
    if not cluster.compile_for:
        return (
            f"cluster {cluster.name!r} does not say for what its programs are compiled: add compile_for to its file "
            "(docs/cluster.md)"
        )
    options = cluster.device.compile_options
    if platform == "tpu":
        return CompileTarget(platform, cluster.compile_for, mesh, by_jit, options)
    if cluster.compile_for not in cards():
        return f"cluster {cluster.name!r}: compile_for is {cluster.compile_for!r}, known cards are {', '.join(cards())}"
    return CompileTarget(platform, target_config(cluster.compile_for), mesh, by_jit, options)


def _missing(platform: Platform) -> str:
    """Returns what has to be installed to compile for a platform; empty where nothing has."""
    try:
        found = all(find_spec(name) for name in _MODULES[platform]) and version(_PACKAGES[platform][1])
    except PackageNotFoundError:
        found = ""
    compiler, extra = _PACKAGES[platform][0], _EXTRAS[platform]
    return "" if found else f"{compiler} is not installed: pip install 'rhino-parallel[{extra}]'"
