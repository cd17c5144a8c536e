"""What there is to choose from for a step on a cluster: stages, meshes of ranks, micro-batches.

What the caller leaves open is every possibility; what cannot pay, or would seldom say anything new, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from rhino.ir.cluster.cluster import Cluster, load_cluster, takes_three_axes
from rhino.ir.cluster.groups import num_units
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.graph import BARRIER, Graph
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.program.program import read_program
from rhino.passes.base import Remarks
from rhino.passes.pipeline.micro_batch import BATCH, batch_size
from rhino.passes.pipeline.rematerialize import Rematerialize, Unkept
from rhino.passes.pipeline.split_scans import find_layers
from rhino.passes.planner.setup import OFFLOAD_OPTION, Setup
from rhino.passes.registry import before_choice
from rhino.passes.sharding.planning_pass import rank_target
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.autotune.base import MOST, Space
from rhino.strategies.pipeline.stages.shapes import MOST_DEVICES
from rhino.strategies.sharding.choice_problem import build

_OP_RULES: Final = "op-rules"
"""The option that names the file of rules for custom calls."""


def make_space(
    setup: Setup,
    stages: Sequence[int] = (),
    meshes: Sequence[tuple[int, ...]] = (),
    micro_batches: Sequence[int] = (),
    most: int = MOST,
    replicas: int = 0,
    unlike: tuple[tuple[int, ...], ...] = (),
) -> Space:
    """Returns what there is to choose from; what the caller leaves empty is every possibility.

    With a number of `replicas` it is these alone, and so it is with `unlike` meshes [ranks].

    Raises:
        RhinoError: RHI-READ-005 and -006 for a module that cannot be read.
    """
    cluster, context = load_cluster(setup.cluster), make_context()
    module = ir.Module.parse(setup.module, context)
    rules = {name: text for name, text in setup.options.items() if name == _OP_RULES}
    build_pass_manager(before_choice(rules), context, Remarks(setup.file)).run(module.operation)
    possible = tuple(micro_batches) or _numbers(module, setup)  # the batch is followed through calls by their rules
    numbers = _apart(possible)
    with context:
        program = read_program(entry_function(module), mesh_of_shape((1,)), setup.file)
        unsplit = build(program.graph, rank_target(cluster, mesh_of_shape((1,)), cluster.num_devices).model).problem
    layers = find_layers(entry_function(module).regions[0].blocks[0])
    most_stages = _most_stages(program.graph, sum(one.trips for one in layers), cluster.num_devices)
    counts = stages or [count for count in range(1, most_stages + 1) if cluster.num_devices % count == 0]
    argument_bytes = sum(program.graph.type_of(value).num_bytes for value in range(len(program.graph.arguments)))
    passing = max(0.0, float(unsplit.least_memory().max(initial=0.0)) - argument_bytes)
    found = {count: tuple(meshes) or rank_meshes(cluster, count) for count in counts if count == 1 or numbers[-1] > 1}
    if replicas or unlike:
        found = {}
    count = replicas or (0 if stages or unlike else num_units(cluster))
    row = (cluster.num_devices // max(1, count),)
    apart = {}
    if count > 1 and numbers[-1] >= count:
        apart = {count: tuple(meshes) or tuple(dict.fromkeys([row, *rank_meshes(cluster, count)]))}
    is_open = numbers[-1] > 1 and not (meshes or replicas or unlike or setup.options.get(OFFLOAD_OPTION))
    may_be_unlike = is_open and cluster.num_devices <= MOST_DEVICES
    unlike_stages = (stages or range(2, cluster.num_devices)) if may_be_unlike else ()
    return Space(
        found,
        numbers,
        arithmetic_s(program.graph, cluster),
        most=most,
        budget_bytes=setup.budget_bytes,
        finer=possible,
        resident_bytes=argument_bytes / cluster.num_devices,
        passing_bytes=passing / cluster.num_devices,
        has_kin=not meshes,
        three_axes=frozenset([count for count in found if takes_three_axes(cluster, count)]),
        replicas=apart,
        unlike=(unlike,) if unlike and numbers[-1] > 1 else (),
        rank_shapes=unlike_meshes(cluster),
        unlike_stages=tuple([count for count in unlike_stages if 1 < count < cluster.num_devices]),
        is_recomputed=_is_recomputed(module.operation, setup),
    )


def _is_recomputed(module: ir.Operation, setup: Setup) -> bool:
    """Says whether a step in one stage has nothing left to recompute, as one with all layers under `jax.checkpoint`."""
    if all(op.name != BARRIER for op in walk(entry_function(module).operation)):
        return False
    copy, remarks = module.clone(), Remarks(setup.file)
    with suppress(RhinoError):  # which planning tells
        Rematerialize(cluster=setup.cluster).run(copy, remarks)
    found = remarks.find(Unkept)
    return found is not None and not found.num_repeated


def _most_stages(graph: Graph, layers: int, num_devices: int) -> int:
    """Returns in how many stages a step is looked at: none does less than one of the `layers` that loops run over."""
    works = graph.times() * np.array([cls.flops for cls in graph.classes], dtype=float)[graph.op_class]
    inside = np.zeros(graph.num_ops, dtype=bool)
    for loop in graph.loops:
        inside[loop.op : loop.end] = True
    of_loops = works[inside].sum()
    return min(num_devices, int(layers * works.sum() / of_loops)) if layers and of_loops else num_devices


def _numbers(module: ir.Module, setup: Setup) -> tuple[int, ...]:
    """Returns the possible numbers of micro-batches: the divisors of the batch, or 1 alone if there is no batch."""
    try:
        with module.context, ir.Location.unknown():
            size = batch_size(module.operation, {name: one for name, one in setup.options.items() if name in BATCH})
    except RhinoError:
        return (1,)
    return tuple(number for number in range(1, size + 1) if size % number == 0)


def _apart(possible: Sequence[int]) -> tuple[int, ...]:
    """Returns the numbers to step in, each about twice the one before."""
    numbers = [possible[0]]
    for number in possible:
        if number >= APART * numbers[-1]:
            numbers.append(number)
    return tuple(numbers)


APART: Final = 1.9
"""At least how many times the number before is the next number of micro-batches that is tried."""


def rank_meshes(cluster: Cluster, num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Returns the meshes that are searched for a rank, where each rank has as many devices.

    They have two axes where the number of devices is a product. On devices of one level the order of the axes says
    little, and two axes do whatever one does: then it is one mesh for each product of two factors that gives the
    number. What one axis, three, or the other order have in their favour is looked at for the best plans (`Space.kin`).
    """
    size = cluster.num_devices // num_ranks
    return _pairs(cluster, size) or ((size,),)


def _pairs(cluster: Cluster, size: int) -> tuple[tuple[int, ...], ...]:
    """Returns the meshes of two axes for a rank of so many devices."""
    pairs = [(outer, size // outer) for outer in range(2, size) if size % outer == 0]
    spans = size > cluster.levels[-1].size
    return tuple([pair for pair in pairs if spans or pair[0] <= pair[1]])


def unlike_meshes(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Returns the meshes that ranks of unlike meshes may have, unasked: of one axis, and of two.

    Their numbers of devices, less than all, have no prime factor that the cluster's number has not: dims that can be
    divided among all devices can be divided among so many, and others seldom.
    """
    count = cluster.num_devices
    sizes = [size for size in range(1, count) if count ** size.bit_length() % size == 0]
    return tuple([mesh for size in sizes for mesh in ((size,), *_pairs(cluster, size))])


def arithmetic_s(graph: Graph, cluster: Cluster) -> float:
    """Returns the seconds of a step's products, each at the full rate of all devices: no plan is faster."""
    counts: list[float] = np.bincount(graph.op_class, graph.times(), len(graph.classes)).tolist()
    works = [
        (count * cls.flops, cls.operands[0].dtype)
        for count, cls in zip(counts, graph.classes, strict=True)
        if cls.operands
    ]
    groups = cluster.groups or (cluster,)

    def rate(dtype: str) -> float:
        return sum(one.num_devices * one.device.matmul_flops_per_s(dtype) for one in groups)

    return sum(flops / rate(dtype) for flops, dtype in works if flops)
