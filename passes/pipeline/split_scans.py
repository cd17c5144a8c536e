"""Cut loops over layers in several loops one after the other, so that stages can share the layers.

Reads     a normalized step on one device; its loops that run once for each row of stacks, as JAX's `scan` writes them
          (passes/pipeline/scan_loops.py). `counts` says of how many iterations each loop is to be; without it they are
          chosen for `stages`, by seconds of ops (strategies/pipeline/stages/iterations.py): of the step on one device,
          or of what `trial` makes of it, sharded and in micro-batches.
Writes    the loops as pieces, each with the rows of its stacks alone. What is computed row by row from stacks, as an
          optimizer's update, is computed for the rows of each piece; sums over rows, as a norm, are sums of the sums of
          pieces. With `leaves`, arguments and results that are such stacks are pieces too
          (passes/pipeline/split_leaves.py).
Errors    RHI-STAGE-006 loops that do not run as often as `counts` says, RHI-CLUSTER-001 unknown preset,
          RHI-CLUSTER-002 malformed file, RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's
          mesh does not have, RHI-LOCAL-001 an op that cannot run between the shardings around it, RHI-MESH-001 a mesh
          that is larger than the cluster.

Which rows go together is followed from the stacks of loops through ops (passes/pipeline/row_dims.py). Loops that such
rows join, forward and backward pass, are cut at the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.mesh import parse_meshes
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.reader import end_of, entry_function, maker_of
from rhino.ir.program.identity import make_constant
from rhino.passes.base import Item, Pass, Remarks, opt, run_pipeline
from rhino.passes.frontend.stage_marks import direction_of
from rhino.passes.frontend.tidy import tidy
from rhino.passes.pipeline.part_numbers import drop_dead, is_used
from rhino.passes.pipeline.row_dims import RowDims, on_rows, row_dims, rows_of, with_rows
from rhino.passes.pipeline.scan_loops import UPDATE, Scan, is_annotated, read_scan
from rhino.passes.pipeline.sharded_step import SHARDED_ERRORS, num_ranks, rank_mesh, sharded_step, unlike_ranks
from rhino.passes.pipeline.split_leaves import split_leaves
from rhino.passes.sharding.planning_pass import DEFAULT_CLUSTER
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.pipeline.stages.iterations import LayerLoops, cut_iterations
from rhino.strategies.structure.training_phases import parts_of

Value = ir.Value[Any]


@dataclass(frozen=True)
class SplitScans(Pass):
    """Cut loops over layers in several loops, for stages to share them."""

    name: ClassVar[str] = "rhino-split-scans"
    errors: ClassVar[tuple[str, ...]] = (
        "RHI-STAGE-006",
        "RHI-CLUSTER-001",
        "RHI-CLUSTER-002",
        *UNSHARDED_ERRORS,
        *SHARDED_ERRORS,
    )

    stages: int = opt(2, "how many stages")
    counts: str = opt("", "iterations of each piece, as 4;4;3; empty chooses them for the stages")
    leaves: bool = opt(False, "true = arguments and results that are stacks of such rows are in pieces, too")
    cluster: str = opt(DEFAULT_CLUSTER, "a preset's name or a cluster file")
    meshes: str = opt("", "the mesh of each stage, as 2x2;2;2, where they are unlike")
    trial: tuple[Item, ...] = opt(
        (), "a pipeline that shards the step: counts are chosen by what it makes of a copy; empty runs none"
    )

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Rewrites `module` in place."""
        entry = entry_function(module, remarks.file)
        block = entry.regions[0].blocks[0]
        layers = find_layers(block)
        if not layers:
            return
        place = Place(remarks.file)
        if any(direction_of(view.operation) is not None for view in block.operations):
            text = "loops over layers stay whole: the model has stage boundaries, which say where it is cut"
            remarks.add(self.name, place, text)
            return
        cuts = self._given(layers, remarks) if self.counts else self._chosen(module, layers, remarks)
        entry = entry_function(module, remarks.file)  # as rules come and go, ops are others
        layers = find_layers(entry.regions[0].blocks[0])
        several = {number: rows for number, rows in enumerate(cuts) if len(rows) > 2}
        if not several:
            return
        for rows in several.values():
            counts = ", ".join(str(stop - start) for start, stop in pairwise(rows))
            text = f"a loop over {rows[-1]} layers is cut in pieces of {counts}"
            remarks.add(self.name, place, text)
        _Pieces(entry, layers, several).write()
        drop_dead(entry.regions[0].blocks[0])
        if self.leaves:
            for text in split_leaves(entry, list(several.values())):
                remarks.add(self.name, place, text)
        tidy(module, entry)

    def _given(self, layers: Sequence[Layers], remarks: Remarks) -> list[list[int]]:
        """Returns the cuts that `counts` says, of all loops that run so often."""
        words = [one.strip() for one in self.counts.split(";")]
        counts = [int(one) if one.isdigit() else 0 for one in words]
        found = [[sum(counts[:at]) for at in range(len(counts) + 1)] for _ in layers]
        known = [one.trips for one in layers]
        if 0 in counts or sum(counts) not in known:
            raise RhinoError(
                "RHI-STAGE-006",
                f"no loop over layers runs {self.counts} times, one number a piece",
                Place(remarks.file),
                fix=f"give counts whose sum is one of these: {', '.join(map(str, dict.fromkeys(known)))}",
            )
        return [rows if rows[-1] == trips else [0, trips] for rows, trips in zip(found, known, strict=True)]

    def _chosen(self, module: ir.Operation, layers: Sequence[Layers], remarks: Remarks) -> list[list[int]]:
        """Returns the cuts that make stages the most even: of the step as `trial` makes it, or else as it is."""
        aside = Remarks(remarks.file)
        if self.trial:
            copy = module.clone()
            with suppress(RhinoError):  # what it is follows from the step itself, to which these passes come next
                run_pipeline(self.trial, copy, aside)
                cuts = self._most_even(copy, aside)
                if [rows[-1] for rows in cuts] == [one.trips for one in layers]:
                    return cuts
        return self._most_even(module, aside)

    def _most_even(self, module: ir.Operation, remarks: Remarks) -> list[list[int]]:
        """Returns the cuts that make the stages of a step, or of its micro-batch, the most even."""
        cluster = load_cluster(self.cluster)
        with unsharded_program(module, remarks) as program:
            meshes = parse_meshes(self.meshes) if self.meshes else (rank_mesh(module),)
            ranks = num_ranks(module, cluster, self.stages if len(meshes) == 1 else cluster.num_devices)
            sharded = sharded_step(program, module, cluster, ranks)
            loop, seconds = sharded.loop, sharded.seconds
            rates = [1.0] * self.stages
            if len(meshes) > 1:
                own = range(self.stages), seconds, sharded.value_bytes
                unlike = unlike_ranks(module, program.file, cluster, meshes, *own)
                rates = unlike.rates(seconds)
            parts = parts_of(program.graph, loop, seconds)
            region = program.ops[loop.op].regions[1] if loop is not None else program.entry.regions[0]
            places = {op: number for number, op in enumerate(program.ops)}
            loops = [
                LayerLoops(tuple(places[scan.loop] for scan in one.scans), one.trips)
                for one in find_layers(region.blocks[0], annotated=True)
            ]
            return cut_iterations(program.graph, seconds, parts.body & ~parts.free, loops, rates)


@dataclass(eq=False)
class Layers:
    """The loops over the same layers, and of each value that has their rows the dim that these are."""

    scans: list[Scan]
    rows: dict[Value, int] = field(default_factory=dict)

    @property
    def trips(self) -> int:
        """How many layers there are."""
        return self.scans[0].trips


def find_layers(block: ir.Block, *, annotated: bool = False) -> list[Layers]:
    """Returns the layers that the loops of a block run over, in the order of their first loops.

    Loops that say how their values lie are among them only if these may be `annotated`: pieces would not say it.
    """
    scans = {
        view.operation: scan
        for view in block.operations
        if (annotated or not is_annotated(view.operation)) and (scan := read_scan(view.operation)) is not None
    }
    found: list[Layers] = []
    for scan in scans.values():
        known = next((one for one in found if scan in one.scans), None)
        if known is None:
            found.append(_followed(block, scan, scans))
    return found


def _followed(block: ir.Block, first: Scan, scans: Mapping[ir.Operation, Scan]) -> Layers:
    """Returns the layers of a loop: what its rows lead to, and the loops among that."""
    layers = Layers([])
    waiting: list[tuple[Value, int]] = []

    def take(scan: Scan) -> None:
        if scan not in layers.scans:
            layers.scans.append(scan)
            waiting.extend((scan.loop.operands[number], 0) for number in scan.read)
            waiting.extend((scan.loop.results[number], 0) for number in scan.written)

    def note(op: ir.Operation, position: int | None, dim: int) -> None:
        if op.block != block or not op.results:
            return
        scan = scans.get(op)
        if scan is not None:
            number = position if position is not None else -1
            if dim == 0 and (number in scan.read or number in scan.written):
                take(scan)
            return
        dims = row_dims(op, position, dim)
        if dims is not None:
            waiting.extend(
                (value, own) for value, own in zip(op.operands, dims.operands, strict=True) if own is not None
            )
            if dims.result is not None:
                waiting.append((op.results[0], dims.result))

    take(first)
    while waiting:
        value, dim = waiting.pop()
        if value in layers.rows:
            continue
        layers.rows[value] = dim
        maker = maker_of(value)
        if maker is not None:
            note(maker, None, dim)
        for use in value.uses:
            note(use.owner.operation, use.operand_number, dim)
    order = {scan: place for place, scan in enumerate(scans.values())}
    layers.scans.sort(key=lambda scan: order[scan])
    return layers


@dataclass(eq=False)
class _Pieces:
    """Writes loops and what belongs to their rows in pieces; `cuts` are the rows at which, by the number of layers."""

    entry: func.FuncOp
    layers: Sequence[Layers]
    cuts: Mapping[int, Sequence[int]]
    made: dict[Value, list[Value]] = field(default_factory=dict)
    replaced: list[ir.Operation] = field(default_factory=list)

    def write(self) -> None:
        """Rewrites the function."""
        scans = {scan.loop: (number, scan) for number in self.cuts for scan in self.layers[number].scans}
        ops = [view.operation for view in self.entry.regions[0].blocks[0].operations][:-1]
        known = [scans.get(op) for op in ops]  # before anything changes: ops hash by their operands
        for op, own in zip(ops, known, strict=True):
            if own is not None:
                self.write_loop(*own)
            else:
                self.write_op(op)
        for op in reversed(self.replaced):
            for result in op.results:
                if is_used(result):
                    _, dim = self.layers_of(result)
                    with ir.InsertionPoint(op), op.location:
                        whole = stablehlo.ConcatenateOp(self.made[result], dim).result
                    result.replace_all_uses_with(whole)
            op.erase()

    def layers_of(self, value: Value) -> tuple[int, int]:
        """Returns which layers a value has rows of, and in which dim; -1 for none that are cut."""
        for number in self.cuts:
            dim = self.layers[number].rows.get(value)
            if dim is not None:
                return number, dim
        return -1, 0

    def write_op(self, op: ir.Operation) -> None:
        """Computes an op for the rows of each piece, if it belongs to some."""
        sides: list[tuple[int | None, Value]] = [*enumerate(op.operands), *((None, one) for one in op.results)]
        for position, value in sides:
            number, dim = self.layers_of(value)
            if number >= 0:
                dims = row_dims(op, position, dim)
                if dims is not None and self.agrees(op, dims, number):
                    self.write_rows(op, dims, number)
                return

    def agrees(self, op: ir.Operation, dims: RowDims, number: int) -> bool:
        """Says whether operands and result have the rows that the op takes and gives."""
        sides = [*zip(op.operands, dims.operands, strict=True), (op.results[0], dims.result)]
        return all(dim is None or self.layers_of(value) == (number, dim) for value, dim in sides)

    def write_rows(self, op: ir.Operation, dims: RowDims, number: int) -> None:
        operands = [
            [value] * (len(self.cuts[number]) - 1) if dim is None else self.pieces(value)
            for value, dim in zip(op.operands, dims.operands, strict=True)
        ]
        with ir.InsertionPoint(op), op.location:
            made = [
                on_rows(op, dims, [pieces[at] for pieces in operands], stop - start)
                for at, (start, stop) in enumerate(pairwise(self.cuts[number]))
            ]
            if dims.joins is None:
                self.made[op.results[0]] = made
                self.replaced.append(op)
                return
            joined, *others = made
            for other in others:
                joined = ir.Operation.create(dims.joins, [joined.type], [joined, other]).results[0]
        op.results[0].replace_all_uses_with(joined)

    def pieces(self, value: Value) -> list[Value]:
        """Returns the rows of each piece."""
        if value not in self.made:
            number, dim = self.layers_of(value)
            maker = maker_of(value)
            at = (
                ir.InsertionPoint.at_block_begin(self.entry.regions[0].blocks[0])
                if maker is None
                else ir.InsertionPoint.after(maker)
            )
            with at, value.location if maker is None else maker.location:
                self.made[value] = [rows_of(value, dim, *rows) for rows in pairwise(self.cuts[number])]
        return self.made[value]

    def write_loop(self, number: int, scan: Scan) -> None:
        """Writes a loop for the rows of each piece, one after the other."""
        rows = list(pairwise(self.cuts[number]))
        carried = list(scan.loop.operands)
        stacks = {one: self.pieces(scan.loop.operands[one]) for one in scan.read}
        stacks |= {one: self.starts(scan, one, rows) for one in scan.written}
        made: dict[int, list[Value]] = {one: list(stacks[one]) for one in scan.written}
        done = 0
        for at in reversed(range(len(rows))) if scan.is_reversed else range(len(rows)):
            count = rows[at][1] - rows[at][0]
            for one, pieces in stacks.items():
                carried[one] = pieces[at]
            values = _piece(scan, carried, done, count)
            done += count
            for one, value in enumerate(values):
                if one in made:
                    made[one][at] = value
                elif one not in stacks and one not in scan.counters:
                    carried[one] = value
        results = scan.loop.results
        with ir.InsertionPoint(scan.loop), scan.loop.location:
            for one, (start, step) in scan.counters.items():
                carried[one] = make_constant(results[one].type, start + step * scan.trips)
        for one in range(len(carried)):
            if one in made:
                self.made[results[one]] = made[one]
            else:
                results[one].replace_all_uses_with(scan.loop.operands[one] if one in stacks else carried[one])
        self.replaced.append(scan.loop)

    def starts(self, scan: Scan, one: int, rows: Sequence[tuple[int, int]]) -> list[Value]:
        """Returns what each piece of a written stack starts from; what no iteration reads is zeros."""
        start = scan.loop.operands[one]
        body = scan.loop.regions[1].blocks[0]
        if len(list(body.arguments[one].uses)) > 1:
            return self.pieces(start)
        with ir.InsertionPoint(scan.loop), scan.loop.location:
            return [make_constant(with_rows(start.type, stop - first), 0) for first, stop in rows]


def _piece(scan: Scan, operands: Sequence[Value], before: int, count: int) -> list[Value]:
    """Writes a loop of `count` iterations, before the loop that it is a piece of; `before` were in other pieces.

    Returns what it gives. One iteration is no loop.
    """
    loop = scan.loop.clone(ip=ir.InsertionPoint(scan.loop))
    body, condition = loop.regions[1].blocks[0], loop.regions[0].blocks[0]
    for number, operand in enumerate(operands):
        loop.operands[number] = operand
    for number in (*scan.read, *scan.written):
        for value in (loop.results[number], body.arguments[number], condition.arguments[number]):
            value.set_type(with_rows(value.type, count))
    counter = body.arguments[scan.counter]
    taking = [body.operations[place].operation for place in scan.uses]
    with ir.InsertionPoint(loop), loop.location:
        loop.operands[scan.counter] = make_constant(counter.type, 0)
    with ir.InsertionPoint.at_block_begin(body), loop.location:
        rows = _Rows(counter, count, is_reversed=scan.is_reversed)
        for number, (start, step) in scan.counters.items():
            _count_on(body, number, step * before + (start if number == scan.counter else 0))
        dead = list[ir.Operation | None]()
        for op in taking:
            first = 2 if op.name == UPDATE else 1
            dead.append(maker_of(op.operands[first]))
            op.operands[first] = rows.of_type(op.operands[first].type)
            if op.name == UPDATE:
                op.results[0].set_type(with_rows(op.results[0].type, count))
    _erase_dead([op for op in dict.fromkeys(dead) if op is not None])
    _run_times(condition, scan.counter, count)
    return list(loop.results) if count > 1 else _inlined(loop, taking)


def _inlined(loop: ir.Operation, taking: Sequence[ir.Operation]) -> list[Value]:
    """Puts the ops of a loop of one iteration in its place; returns what it gives. `taking` take or put its one row."""
    body = loop.regions[1].blocks[0]
    *ops, end = [view.operation for view in body.operations]
    for argument, operand in zip(body.arguments, loop.operands, strict=True):
        argument.replace_all_uses_with(operand)
    for op in ops:
        op.move_before(loop)
    for op in taking:
        op.results[0].replace_all_uses_with(op.operands[1 if op.name == UPDATE else 0])
        op.erase()
    values = list(end.operands)
    loop.erase()
    return values


def _count_on(body: ir.Block, number: int, by: int) -> None:
    """Has who reads a counter of a body read `by` more, but for what it is in the next iteration."""
    counter = body.arguments[number]
    following = maker_of(end_of(body).operands[number])
    assert following is not None, "a counter goes on"
    if by and any(use.owner.operation != following for use in counter.uses):
        real = stablehlo.AddOp(counter, make_constant(counter.type, by))
        counter.replace_all_uses_except(real.result, [following, real.operation])


@dataclass(eq=False)
class _Rows:
    """The row of each iteration of a loop of `count`, made at the insertion point as an index of the type asked for."""

    counter: Value
    count: int
    is_reversed: bool
    made: dict[ir.Type, Value] = field(default_factory=dict)

    def of_type(self, kind: ir.Type) -> Value:
        """Returns the row as such an index."""
        if kind not in self.made:
            row = self.counter
            if self.is_reversed:
                row = stablehlo.SubtractOp(make_constant(row.type, self.count - 1), row).result
            self.made[kind] = row if row.type == kind else stablehlo.ConvertOp(kind, row).result
        return self.made[kind]


def _erase_dead(dead: list[ir.Operation]) -> None:
    """Erases ops that nobody reads any more, and what was computed for them alone."""
    while dead:
        op = dead.pop()
        if not any(is_used(result) for result in op.results):
            makers = [maker for maker in map(maker_of, op.operands) if maker is not None]
            op.erase()
            dead += [maker for maker in dict.fromkeys(makers) if maker not in dead]


def _run_times(condition: ir.Block, counter: int, count: int) -> None:
    """Makes a condition say that the loop runs `count` times."""
    place = condition.operations[0].location
    for view in reversed(list(condition.operations)):
        view.operation.erase()
    with ir.InsertionPoint(condition), place:
        value = condition.arguments[counter]
        less = ir.Attribute.parse("#stablehlo<comparison_direction LT>")
        test = stablehlo.CompareOp(value, make_constant(value.type, count), less).result
        stablehlo.ReturnOp([test])
