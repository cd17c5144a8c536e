"""A function planned for arguments of some shapes, and compiled when it is first run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh

from rhino.call import CallShape, Key, Pieces
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mesh import Mesh
from rhino.ir.presets import PRESETS
from rhino.ir.spmd_plan import plan_to_text
from rhino.plan import Plan, Trees
from rhino.planner import Wish, adopt_plan, search_plan
from rhino.program import SpmdProgram, make_program
from rhino.traced import Traced, trace


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What the user said beside the function: a wish, whose cluster may be left out, or a plan that was kept.

    `mesh` and `devices` are those of JAX, where they are given.
    """

    wish: Wish
    plan: Plan | None
    mesh: AbstractMesh | None
    devices: tuple[jax.Device, ...] | None


@dataclass(frozen=True, eq=False)
class Entry:
    """A function planned for one key. `code` is the module of its plan, `donated` are arguments by number."""

    traced: Traced
    plan: Plan
    code: bytes
    donated: tuple[int, ...]

    @cached_property
    def program(self) -> SpmdProgram:
        """The program on its devices. Raises RHI-RUN-004 where there are too few, RHI-JAX-008 where another process has another plan."""
        _check_agreement(self.plan)
        return make_program(self.traced, self.plan, self.code, self.donated)


def make_entry(fn: Callable[..., Any], shape: CallShape, pieces: Pieces, key: Key, asked: Asked) -> Entry:
    """Returns `fn` planned for a call: by search, or as the kept plan says."""
    if asked.plan is None:
        wish = _settled(asked.wish, asked.devices)
        traced = trace(fn, shape, pieces, key, asked.mesh or _abstract(wish.named_mesh()))
        planned = search_plan(traced, wish)
    else:
        traced = trace(fn, shape, pieces, key, asked.mesh or _abstract(Mesh(asked.plan.facts.mesh)))
        planned = adopt_plan(traced, asked.plan.facts, asked.wish.cluster or None, asked.wish.op_rules)
    devices = asked.devices
    if devices is not None:
        num_devices = prod(size for _, size in planned.plan.mesh)
        if len(devices) < num_devices:
            what = f"the plan of {shape.name} needs {num_devices} devices, and {len(devices)} were given"
            raise RhinoError("RHI-RUN-004", what, fix="give as many, or plan for a smaller mesh")
        devices = devices[:num_devices]
    plan = Plan(planned.plan, Trees(key.tree, traced.out_tree), devices)
    return Entry(replace(traced, code=b""), plan, planned.code, shape.donated_pieces(pieces))


def _check_agreement(plan: Plan) -> None:
    """Compares the plans of all processes of a job: different programs would wait for one another for ever."""
    if jax.process_count() == 1:
        return
    own = np.frombuffer(hashlib.sha256(plan_to_text(plan.facts).encode()).digest(), np.uint8)
    every = np.asarray(multihost_utils.process_allgather(own)).reshape(-1, own.size)
    others = [number for number, one in enumerate(every) if (one != every[0]).any()]
    if others:
        name = plan.facts.source.function
        raise RhinoError(
            "RHI-JAX-008",
            f"process {', '.join(map(str, others))} has another plan of {name} than process 0",
            fix="pass the same shapes, options and code in every process, or give all of them one plan that was saved",
        )


def _abstract(mesh: Mesh | None) -> AbstractMesh | None:
    return AbstractMesh(mesh.shape, mesh.names) if mesh is not None else None


def _settled(wish: Wish, devices: tuple[jax.Device, ...] | None) -> Wish:
    """Returns the wish with a cluster: if none is named, that of the host devices that are there."""
    if wish.cluster:
        return wish
    there = devices if devices is not None else tuple(jax.devices())
    if there[0].platform != "cpu":
        raise RhinoError(
            "RHI-CLUSTER-001",
            f"no cluster is named, and what {there[0].device_kind} does in which time is not known",
            notes=(f"presets: {', '.join(PRESETS)}",),
            fix="say cluster='h100x8', another preset, or the path of a cluster file (docs/cluster.md)",
        )
    hosts = {int(name.removeprefix("cpu")): name for name in PRESETS if name.startswith("cpu")}
    large = [count for count in sorted(hosts) if count >= len(there)]
    if not large:
        raise RhinoError("RHI-CLUSTER-001", f"no cluster is named, and no preset has {len(there)} host devices", fix="name a cluster")
    return replace(wish, cluster=hosts[large[0]], mesh=wish.mesh or str(len(there)))
