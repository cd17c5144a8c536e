"""A function planned for arguments of some shapes, and compiled when it is first run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

from rhino.call import CallShape, Key, Pieces
from rhino.distributed import meeting
from rhino.ir.cluster.cluster import load_cluster, parse_cluster
from rhino.ir.cluster.hardware import Device
from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.cluster.presets import PRESETS
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.plan import dims_text
from rhino.ir.plan.plan_json import head_text
from rhino.jit_program import JitProgram, make_program
from rhino.job import check_agreement, planned_in_job
from rhino.passes.precision.mixed_precision import F16
from rhino.plan import Plan
from rhino.plan_options import PlanOptions
from rhino.planner import Planned, adopt_plan, plan_function
from rhino.runtime.executor.trace import Recorder
from rhino.stage_programs import StagePrograms
from rhino.step_log import logged_ranks
from rhino.traced import Traced, key_dims, trace
from rhino.trees import Trees


@dataclass(frozen=True, slots=True, eq=False)
class CallOptions:
    """What the user said beside the function: a request, whose cluster may be left out, or a plan that was kept.

    `mesh` and `devices` are those of JAX, where they are given; with `verify` the first step of each program is
    computed in a second way.
    """

    plan_options: PlanOptions
    plan: Plan | None
    mesh: AbstractMesh | None
    devices: tuple[jax.Device, ...] | None
    verify: bool = False

    @property
    def is_scaled(self) -> bool:
        """Whether the function is computed in f16, with a loss scale."""
        kept = self.plan.facts.options if self.plan is not None else {}
        return F16 in (self.plan_options.amp, kept.get("amp"))


@dataclass(frozen=True, eq=False)
class Entry:
    """A function planned for one key.

    `code` is the module of a plan of shardings alone; `donated` are arguments by number.
    """

    traced: Traced
    plan: Plan
    code: bytes
    donated: tuple[int, ...]

    @cached_property
    def program(self) -> JitProgram | StagePrograms:
        """The program on its devices.

        Raises:
            RhinoError: RHI-RUN-004 where there are too few, a process has none, or they are of another platform than
                the function's kernels; RHI-JAX-008 where another process has another plan.
        """
        there = self.plan.devices[0] if self.plan.devices else jax.devices()[0]
        if self.traced.platform not in ("", there.platform):
            raise RhinoError(
                "RHI-RUN-004",
                f"{self.plan.function} has kernels for a {self.traced.platform}, and its devices are {there.platform}s",
                fix=f"run it on {self.traced.platform}s; its plan is made, explained and saved without them",
            )
        facts = self.plan.facts
        placed = [device.id for rank in self.plan.ranks for device in rank.devices] if self.plan.team else []
        if jax.process_count() > 1 and (placed or not facts.is_staged):
            meeting()
            check_agreement(f"{head_text(facts)} {placed}", self.plan.function)
        if facts.is_staged:
            recorder = Recorder() if logged_ranks(self.plan) else None
            return StagePrograms(self.traced, self.plan, recorder)
        made = make_program(self.traced, self.plan, self.code, self.donated)
        return made if jax.process_count() == 1 else replace(made, call=meeting().calls.counted(made.run))


def make_entry(
    fn: Callable[..., Any],
    shape: CallShape,
    pieces: Pieces,
    key: Key,
    options: CallOptions,
    before: Entry | None = None,
) -> Entry:
    """Returns `fn` planned for a call: by search, or as the kept plan says.

    Arrays of the call that lie as `before` put them, the entry for other shapes, stay there if a plan fits so.
    """
    kept = options.plan
    request = options.plan_options if kept is not None else _settled(options.plan_options, options.devices)
    named = request.mesh if kept is None else kept.facts.mesh if kept.facts.sharding else None
    mesh = options.mesh or _abstract(named, options.devices)
    traced = trace(fn, shape, pieces, key, mesh, _device(request, kept))
    staying = _staying(traced, request, before, pieces) if before is not None and kept is None else None
    requests = [request] if staying is None else [staying, request]
    found = planned_in_job(lambda: _planned_first(requests, traced, kept), traced, request, shape.name, kept)
    devices = _first(options.devices, found.plan.num_reached, shape.name)
    plan = Plan(found.plan, Trees(key.tree, traced.out_tree, traced.loss_scale), devices, traced)
    return Entry(replace(traced, code=b""), plan, found.code, shape.donated_pieces(pieces))


def _device(request: PlanOptions, kept: Plan | None) -> Device | None:
    """Returns what the cluster's devices are, None where no cluster is known."""
    if kept is not None:
        return parse_cluster("\n".join(kept.facts.cluster)).device if kept.facts.cluster else None
    return load_cluster(request.cluster).device if request.cluster else None


def _staying(traced: Traced, request: PlanOptions, before: Entry, pieces: Pieces) -> PlanOptions | None:
    """Returns the request with each array of a call pinned to its current sharding, if the plan `before` placed it.

    Returns None where there is no such array.
    """
    plan, (leaves, tree) = before.plan, jax.tree.flatten(pieces.values)
    if plan.facts.is_staged or request.is_open or request.is_staged or tree != before.traced.key.tree:
        return None
    facts = plan.facts
    there = [
        isinstance(leaf, jax.Array)
        and leaf.committed
        and len(leaf.sharding.device_set) == facts.num_devices
        and not key_dims(aval)
        for leaf, aval in zip(leaves, traced.in_avals, strict=True)
    ]
    planned = jax.tree.leaves(plan.program_shardings[0]) if any(there) else leaves
    pins = tuple(
        f"{one.path}={dims_text(one.dims)}"
        for leaf, sharding, one, is_there in zip(leaves, planned, facts.arguments, there, strict=True)
        if is_there
        and one.dims
        and not (one.padded or one.viewed)
        and leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    )
    return replace(request, meshes=facts.meshes, searches_mesh=False).with_pins(pins) if pins else None


def _planned_first(requests: Sequence[PlanOptions], traced: Traced, kept: Plan | None) -> Planned:
    """Returns the plan by the first of the requests that can be had. Raises what the last one does."""
    *others, last = requests
    for request in others:
        with suppress(RhinoError):
            return _planned(traced, request, kept)
    return _planned(traced, last, kept)


def _planned(traced: Traced, request: PlanOptions, kept: Plan | None) -> Planned:
    if kept is None:
        return plan_function(traced, request)
    return adopt_plan(traced, kept.facts, request.cluster or None, request.op_rules)


def _first(devices: tuple[jax.Device, ...] | None, count: int, name: str) -> tuple[jax.Device, ...] | None:
    """Returns as many of the devices that were given, None where none were.

    Raises RHI-RUN-004 where they are too few.
    """
    if devices is None:
        return None
    if len(devices) < count:
        what = f"the plan of {name} needs {count} devices, and {len(devices)} were given"
        raise RhinoError("RHI-RUN-004", what, fix="give as many, or plan for a smaller mesh")
    return devices[:count]


def _abstract(mesh: Mesh | None, devices: tuple[jax.Device, ...] | None) -> AbstractMesh | None:
    """Returns a mesh to trace under, with the kind of the devices where there are enough.

    The mesh of a user's `shard_map` has that kind, and the two must agree.
    """
    if mesh is None:
        return None
    there = devices if devices is not None else jax.devices()
    count = prod(mesh.shape)
    if len(there) < count:
        return AbstractMesh(mesh.shape, mesh.names)
    found: AbstractMesh = jax.sharding.Mesh(np.array(there[:count]).reshape(mesh.shape), mesh.names).abstract_mesh
    return found


def _settled(request: PlanOptions, devices: tuple[jax.Device, ...] | None) -> PlanOptions:
    """Returns the request with a cluster: if none is named, that of the host devices that are there."""
    if request.cluster:
        return request
    there = devices if devices is not None else tuple(jax.devices())
    if there[0].platform != "cpu":
        raise RhinoError(
            "RHI-CLUSTER-001",
            f"no cluster is named, and the speed of {there[0].device_kind} is not known",
            notes=(f"presets: {', '.join(PRESETS)}",),
            fix="say cluster='h100x8', another preset, or the path of a cluster file (docs/cluster.md)",
        )
    count = len(there)
    hosts = {int(name.removeprefix("cpu")): name for name in PRESETS if name.startswith("cpu")}
    cluster = next((hosts[size] for size in sorted(hosts) if size >= count), None)
    has_mesh = bool(request.meshes) or request.searches_mesh
    takes_cluster = request.is_open and not has_mesh  # what is left open is on all of the cluster
    if cluster is None or (takes_cluster and count not in hosts and request.stages is None):
        raise RhinoError(
            "RHI-CLUSTER-001", f"no cluster is named, and no preset has {count} host devices", fix="name a cluster"
        )
    if request.by_scopes:
        return replace(request, cluster=cluster, shared=count)
    if has_mesh or (takes_cluster and count in hosts):
        return replace(request, cluster=cluster)
    return replace(request, cluster=cluster, meshes=(mesh_of_shape((count // request.num_ranks,)),), shared=count)
