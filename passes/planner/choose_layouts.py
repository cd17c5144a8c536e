"""Choose shardings, and with them whether dims that are cut into blocks are stored as blocks.

A step in which `rhino-materialize-strides` finds views is planned twice: as it is, and with them. Where these are of
several kinds, it is planned without each kind that moves something in turn, and the kind is left out if the step is
faster so. What takes least is kept; a form is given up once its bound shows that it will not be. Any other step is
planned once, as `rhino-choose-shardings` does it.

With `recompute`, a step of which no choice fits is planned with values of its forward pass recomputed for its
backward pass, as `rhino-remat` does it: with all that can be, and where that fits with fewer shares of them.

Reads     what `rhino-choose-shardings` and `rhino-materialize-strides` read; the views are for all devices of the mesh.
Writes    what these write: views where the step is faster with them, and shardings.
Errors    of the step as it is, where it can be planned in neither form: RHI-SOLVE-001 does not fit, RHI-SOLVE-002 steps
          spent, RHI-SHARD-001 a user's sharding cannot be honoured, RHI-MESH-001 larger than the cluster, RHI-MESH-002
          not the module's mesh, RHI-CLUSTER-001 unknown preset, RHI-CLUSTER-002 malformed file, RHI-READ-005 no entry
          function, RHI-PASS-001 an unknown level, RHI-PIN-002 a scope has no axes, or nothing to share, RHI-OFFLOAD-001
          the cluster does not say how fast a device reaches host memory.
Source    Rhino 4.1 and 4.3.3. That a caller's arrays are moved in each call: `rhino.ir.plan.plan.dims_between_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import ClassVar, Final

from rhino.ir.diagnostics import ExitCode, Place, RhinoError
from rhino.ir.graph.blocks import View
from rhino.ir.graph.spec import REPLICATED, Spec, dim_axes, pack, split
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import Side, boundary_attributes
from rhino.ir.mlir.memory_kinds import placement_of
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.plan.plan import Dims, Tensor, dims_between_calls, kind_of
from rhino.ir.program.stored_shapes import VIEW, interleaved_of, logical_shape, padded_shape
from rhino.ir.units import format_seconds
from rhino.passes.base import Remarks, opt, run_pipeline
from rhino.passes.layout.materialize_strides import MaterializeStrides, may_cut, write_views
from rhino.passes.layout.shapes import Shape
from rhino.passes.pipeline.rematerialize import Rematerialize, Unkept
from rhino.passes.sharding.choose_shardings import (
    LEVELS,
    ChooseShardings,
    DoesNotFitError,
    FoundBefore,
    PhaseTimes,
    ShardingChoice,
)
from rhino.passes.sharding.planning_pass import AUTO, Target
from rhino.strategies.cost.reshard import moves
from rhino.strategies.layout.blocked_views import Views
from rhino.strategies.solver.answer import Answer


@dataclass(frozen=True, slots=True)
class OtherLayout:
    """The form in which a step was planned too, and not taken.

    Without `step_s` it was given up at its bound, or `why_not` says why it could not be planned.
    """

    is_viewed: bool
    step_s: float | None
    at_least_s: float
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """How the tensors of a step are stored: `views` of values by number, as they were before; none where it is plain.

    `moved_s` are seconds in each step to bring a caller's arrays to these views and back. `other` is what the step came
    to in the other form.
    """

    views: dict[int, View]
    moved_s: float
    other: OtherLayout


HOST_SHARES: Final = (0.25, 0.5, 0.75, 1.0)
"""The least shares of the activation stash that are tried in host memory, where memory binds."""


_SHARES: Final = 3
"""How often the share that is recomputed is halved, or more of it is taken: to an eighth of the stash."""


_NEAR: Final = 0.01
"""By how much slower, relatively, a mesh may be with all recomputed for it to be compared again at the share that fits.

Of LLaMA 8B on 64 H100 a mesh of 4x16 is 0.01 % faster than one of 64 with all recomputed, and 0.15 % slower with half
of it; of Llama 2 7B on 64 of A3 a mesh of 64 is 0.9 % slower than one of 8x8, and 0.06 % faster with three eighths
(2026-11-28)."""

_OTHER_MESHES: Final = 2
"""How many are compared again, the fastest first: on three axes each takes as long as a share."""


@dataclass(frozen=True, slots=True)
class StashShare:
    """The share of the activation stash that is not kept on devices, for the choice of shardings that was made.

    `option` is that of `rhino-remat` which does so. It was chosen on `mesh`; without `offload`, for a step of which
    nothing lies in host memory.
    """

    option: str
    share: float
    mesh: str
    offload: bool = True


@dataclass(frozen=True)
class ChooseLayouts(ChooseShardings):
    """Choose shardings, and store dims that are cut into blocks as blocks where that is faster."""

    name: ClassVar[str] = "rhino-choose-layouts"

    recompute: bool = opt(
        False, "true = where no choice fits, values of the forward pass are recomputed for the backward pass"
    )
    own_shapes: bool = opt(
        False, "true = between steps arrays have the shapes of the program as written, and are moved in each step"
    )

    @property
    def seeks_least(self) -> bool:
        """Whether a refusal names the least memory that is needed: not where it is the reason to recompute."""
        return not self.recompute

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Chooses, and writes the choice onto `module`."""
        if not self.recompute:
            self.run_with_all_kept(module, remarks)
            return
        before, kept = module.clone(), _Tried(module, {}, remarks)
        kept.plan(self.run_with_all_kept)
        if kept.error is not None and kept.error.exit_code != ExitCode.DOES_NOT_FIT:
            raise kept.error
        # What fits because much lies in host memory may take longer than to recompute it.
        is_open = kept.choice is None or kept.remarks.find(StashShare) is not None or (self.offload and kept.is_bound)
        own = (
            self if kept.choice is None else replace(self, offload=False)
        )  # as without --offload, which is to cost nothing
        best = own.recomputed(before, remarks) if is_open else None
        if kept.choice is not None and (best is None or best.step_s >= kept.step_s):
            kept.add_to(remarks)
            return
        if best is None:
            self.refuse(module, before, remarks)
            return
        swap(module, best.module)
        remarks.record(StashShare("remat", best.share, best.mesh, own.offload))
        best.add_to(remarks)

    def recomputed(self, before: ir.Operation, remarks: Remarks) -> _Tried | None:
        """Returns the best choice for a step with some of its activation stash recomputed.

        Returns None where not even all of it is enough.
        """
        best = self.recomputed_at(1.0, before, remarks)
        if best is None or best.choice is None:
            return None
        # Which mesh is best hangs little on the share, and to look at all of them for each takes too long.
        first, low, high = best.choice, 0.0, 1.0
        on_mesh = self.on(best.mesh) if self.mesh == AUTO else self
        for _ in range(_SHARES):
            one = on_mesh.recomputed_at((low + high) / 2, before, remarks, best)
            if one is not None and one.step_s < best.step_s:
                best, high = one, one.share
            else:
                low = (low + high) / 2
        for mesh in near_meshes(first) if self.mesh == AUTO and best.share < 1.0 else ():
            one = self.on(mesh).recomputed_at(best.share, before, remarks, best)
            best = one if one is not None and one.step_s < best.step_s else best
        return best

    def on(self, mesh: str) -> ChooseLayouts:
        """Returns the pass that plans for one mesh."""
        return replace(self, mesh=mesh)

    def refuse(self, module: ir.Operation, before: ir.Operation, remarks: Remarks) -> None:
        """Raises why there is no plan of a step, nor of one that recomputes all it can, and names what either needs.

        If a choice fits after all, as programs may need less than was counted, it writes that onto `module`.
        """
        full, kept = replace(self, recompute=False), before.clone()
        try:
            full.run_with_all_kept(kept, remarks)
        except DoesNotFitError as error:
            best = full.recomputed_at(1.0, before, remarks)
            if best is None or best.error is None:
                raise
            if best.error.exit_code != ExitCode.DOES_NOT_FIT:
                raise best.error from None
            note = f"with all that can be computed again for the backward pass: {best.error.what}"
            raise replace(error, notes=(*error.notes, note)) from None
        swap(module, kept)

    def recomputed_at(
        self, share: float, before: ir.Operation, remarks: Remarks, best: _Tried | None = None
    ) -> _Tried | None:
        """Returns a step with this share of its activation stash recomputed, as it is planned; it may be given up.

        It is, where it takes as long as `best`. Returns None if nothing is recomputed.
        """
        one = _Tried(before.clone(), {}, remarks, share)
        Rematerialize(remat=f"{share:g}", cluster=self.cluster, offload=self.offload).run(one.module, one.remarks)
        if not one.remarks.result(Unkept).num_repeated:
            return None
        cutoff_s = inf if best is None else best.step_s
        like = best.choice if best is not None and best.share == share else None  # the same program on another mesh
        one.plan(partial(self.lay_out, cutoff_s=cutoff_s, like=like))
        return one

    def run_with_all_kept(self, module: ir.Operation, remarks: Remarks) -> None:
        """Does what `run` does for a step that keeps all of its activation stash, on the device or its host."""
        if not self.offload or self.ranks > 1 or any(map(placement_of, walk(module))):
            self.lay_out(module, remarks)
            return
        before, found = module.clone(), _Tried(module, {}, remarks)
        found.plan(self.lay_out)
        if found.error is not None and found.error.exit_code != ExitCode.DOES_NOT_FIT:
            raise found.error
        best, tried = found, [found]
        for share in HOST_SHARES if found.is_bound else ():
            one = _Tried(before.clone(), {}, remarks, share)
            one.send_to_host(self.cluster)
            if one.hosted == tried[-1].hosted:
                continue  # no more may go there
            one.plan(partial(self.lay_out, cutoff_s=best.step_s))
            tried.append(one)
            is_better = one.step_s < best.step_s
            best = one if is_better else best
            # Where memory binds no more, or what fits has become slower, more would go to host memory in vain; so it
            # would where that is full.
            if not one.is_bound or (best.choice is not None and not is_better) or one.fills_host:
                break
        if best.choice is None:
            raise _refusal(tried)
        if best is not found:
            swap(module, best.module)
            remarks.record(StashShare("host-share", best.share, best.mesh))
        best.add_to(remarks)

    def lay_out(
        self, module: ir.Operation, remarks: Remarks, cutoff_s: float = inf, like: ShardingChoice | None = None
    ) -> float | None:
        """Does what `run` does if a step takes less than `cutoff_s`; else returns what all steps take at least.

        What the forward pass saves lies where the module says. `like` is the choice for the step on another mesh.
        """
        parts = max(target.mesh.num_devices for target in self.targets(module, Remarks(remarks.file)))
        found = Remarks(remarks.file)
        viewed = viewed_copy(module, parts, found)
        if viewed is None:
            return self.run_below(module, remarks, cutoff_s, like)
        before = module.clone()
        plain = self.tried(module, {}, remarks, cutoff_s, like)
        most = min(cutoff_s, self.less_than(plain))
        blocks = self.tried_in_blocks(before, viewed, found.result(Views), remarks, most, plain.choice)
        if plain.choice is None and blocks.choice is None:
            bounds = [one.bound for one in (plain, blocks) if one.bound is not None]
            if plain.error is not None and not bounds:
                raise plain.error
            return min(bounds)
        taken, other = (blocks, plain) if blocks.step_s < self.less_than(plain) else (plain, blocks)
        if taken is blocks:
            swap(module, blocks.module)
            remarks.items += found.items
        choice = LayoutChoice(taken.values, taken.moved_s, other.as_other(is_viewed=other is blocks))
        remarks.items += taken.remarks.items
        remarks.add(self.name, Place(remarks.file), _words(taken, choice))
        for result in taken.remarks.results.values():
            remarks.record(result)
        remarks.record(choice)
        return None

    def less_than(self, tried: _Tried) -> float:
        """Returns the seconds that another form must be below: by more than what the search itself leaves open."""
        return tried.step_s * (1 - LEVELS[self.level].gap)

    def tried_in_blocks(
        self,
        module: ir.Operation,
        viewed: ir.Operation,
        views: Views,
        remarks: Remarks,
        cutoff_s: float,
        plain: ShardingChoice | None,
    ) -> _Tried:
        """Plans a step with all its views, as `viewed` has them, then without the kinds that make it slower.

        A form that takes `cutoff_s` at least is given up. `plain` is the choice for the step as it is, if it has one.
        """
        best, kinds = self.tried(viewed, dict(views.values), remarks, cutoff_s, plain), views.kinds
        num_arguments, kept = len(entry_function(module, remarks.file).arguments), kinds
        for kind in kinds:
            moves = any(one.border_bytes for one in kind) or (
                self.own_shapes and any(value < num_arguments for one in kind for value, _ in one.blocks)
            )
            left = [other for other in kept if other is not kind]
            if not moves or not left:
                continue
            copy, values = module.clone(), views.of([region for other in left for region in other])
            write_views(copy, values, remarks.file)
            fewer = self.tried(copy, values, remarks, min(cutoff_s, self.less_than(best)), best.choice or plain)
            if fewer.step_s < self.less_than(best):
                best, kept = fewer, left
        return best

    def tried(
        self,
        module: ir.Operation,
        values: dict[int, View],
        remarks: Remarks,
        cutoff_s: float = inf,
        like: ShardingChoice | None = None,
    ) -> _Tried:
        """Plans a form of a step, unless it takes `cutoff_s` at least; `like` is the choice for another form."""
        found = _Tried(module, values, remarks)
        found.plan(lambda module, remarks: self.run_below(module, remarks, cutoff_s, like))
        if self.own_shapes and values and found.choice is not None:
            found.moved_s = _moved_s(found.choice)
        return found


class _Tried:
    """A form of a step as it was planned: its choice, or the error where there is none.

    One that was given up has a bound alone. Of its activation stash `share` is recomputed, or lies in host memory,
    where `hosted` are the values that do.
    """

    def __init__(self, module: ir.Operation, values: dict[int, View], remarks: Remarks, share: float = 0.0) -> None:
        self.module, self.values, self.share = module, values, share
        self.remarks = Remarks(remarks.file)
        self.remarks.record(remarks.find(PhaseTimes) or PhaseTimes())
        if known := remarks.find(FoundBefore):
            self.remarks.record(known)
        self.choice: ShardingChoice | None = None
        self.error: RhinoError | None = None
        self.bound: float | None = None
        self.moved_s = 0.0
        self.hosted: tuple[int, ...] = ()

    def plan(self, choose: Callable[[ir.Operation, Remarks], float | None]) -> None:
        """Chooses and writes the shardings, unless what is returned is a bound on the step at which it was given up."""
        try:
            self.bound = choose(self.module, self.remarks)
            self.choice = self.remarks.find(ShardingChoice)
        except RhinoError as error:
            self.error = error

    def send_to_host(self, cluster: str) -> None:
        """Writes the transfers of the share of the activation stash that lies in host memory."""
        Rematerialize(cluster=cluster, host_share=f"{self.share:g}").run(self.module, self.remarks)
        self.hosted = self.remarks.result(Unkept).hosted

    def add_to(self, remarks: Remarks) -> None:
        """Adds the requests and findings on it to those on the step."""
        remarks.items += self.remarks.items
        for result in self.remarks.results.values():
            remarks.record(result)

    @property
    def mesh(self) -> str:
        """The mesh of its choice, as an option names it."""
        assert self.choice is not None, "it is asked of what was planned"
        return str(self.choice.target.mesh)

    @property
    def fills_host(self) -> bool:
        """Whether host memory is too small for what the forward pass has saved there."""
        return isinstance(self.error, DoesNotFitError) and self.error.fills_host

    @property
    def is_bound(self) -> bool:
        """Whether memory binds: the best choice of all does not fit."""
        return self.choice is None or self.choice.is_bound

    @property
    def step_s(self) -> float:
        """The step, with what is moved in it; infinite where it was not planned."""
        return inf if self.choice is None else self.choice.answer.cost + self.moved_s

    def as_other(self, *, is_viewed: bool) -> OtherLayout:
        """Returns what is kept of it where it is not taken."""
        if self.choice is None:
            return OtherLayout(is_viewed, None, self.bound or 0.0, self.error.what if self.error else "")
        return OtherLayout(is_viewed, self.step_s, self.choice.answer.bound)


def near_meshes(choice: ShardingChoice) -> tuple[str, ...]:
    """Returns the meshes that have come near to that of a choice, as options name them: the fastest first.

    One that was given up counts by its bound.
    """
    steps = [
        (one.cost if isinstance(one, Answer) else one.bound, number, target)
        for number, (target, one) in enumerate(choice.outcomes)
        if target.mesh != choice.target.mesh and not isinstance(one, RhinoError)
    ]
    near = sorted([one for one in steps if one[0] <= choice.answer.cost * (1 + _NEAR)], key=lambda one: one[:2])
    return tuple([str(target.mesh) for _, _, target in near[:_OTHER_MESHES]])


def viewed_copy(module: ir.Operation, parts: int, remarks: Remarks) -> ir.Operation | None:
    """Returns a copy of a module with the views that are for `parts` devices; None where there are none.

    What is viewed goes into `remarks`.
    """
    if parts == 1 or not any(map(may_cut, walk(entry_function(module, remarks.file).operation))):
        return None
    copy = module.clone()
    run_pipeline([MaterializeStrides(parts)], copy, remarks)
    return copy if remarks.result(Views).values else None


def host_shares(options: Mapping[str, str]) -> tuple[float, ...]:
    """Returns the shares of the activation stash that may be tried in host memory, by options of passes."""
    return HOST_SHARES if options.get("offload") == "true" and "host-share" not in options else ()


def _refusal(tried: Sequence[_Tried]) -> RhinoError:
    """Returns the error of a step that does not fit: of the share in host memory that came nearest, and of others."""
    refused = [(one, one.error) for one in tried if isinstance(one.error, DoesNotFitError)]
    nearest, error = min(refused, key=lambda one: one[1].needed_bytes)
    notes = [f"{_with_share(one)}: {other.what}" for one, other in refused if one is not nearest]
    what = f"{error.what}, {_with_share(nearest)}" if nearest.share else error.what
    return replace(error, what=what, notes=(*error.notes, *notes))


def _with_share(one: _Tried) -> str:
    """Returns how much of the activation stash lies in host memory, in words."""
    share = f"{one.share:.0%}" if one.share else "nothing"
    return f"with {share} of what is saved for the backward pass in host memory"


def _words(taken: _Tried, choice: LayoutChoice) -> str:
    other = choice.other
    form, others = ("as it is", "with dims stored as blocks") if other.is_viewed else ("with blocks", "as it is")
    if other.why_not:
        against = f"{others} it has no plan: {other.why_not}"
    else:
        least = "" if other.step_s is not None else "at least "
        against = f"{others} it takes {least}{format_seconds(other.step_s or other.at_least_s)}"
    moved = f", {format_seconds(taken.moved_s)} of it to move arrays" if taken.moved_s else ""
    return f"the step takes {format_seconds(taken.step_s)} {form}{moved}; {against}"


def swap(one: ir.Operation, other: ir.Operation) -> None:
    """Exchanges what two modules hold. Nothing is erased: a choice holds ops of the form that is not taken."""
    blocks = [module.regions[0].blocks[0] for module in (one, other)]
    held = [[op.operation for op in block.operations] for block in blocks]
    for block, ops in zip(blocks, reversed(held), strict=True):
        for op in ops:
            block.append(op)
    for name in other.attributes:
        one.attributes[name] = other.attributes[name]


def _moved_s(choice: ShardingChoice) -> float:
    """Returns the seconds in which the viewed arrays of a step are brought into their views, and out of them.

    An array that has to be made whole for that is gathered on either way.
    """
    graph, plan, target = choice.program.graph, choice.plan, choice.target
    arguments = range(len(graph.arguments))
    values = [*arguments, *graph.returns]
    specs = [*(plan.specs[value] for value in arguments), *plan.returned]
    sides: tuple[Side, ...] = ("arg", "res")
    attributes = [one for side in sides for one in boundary_attributes(choice.program.entry, side)]
    total = 0.0
    for value, spec, given in zip(values, specs, attributes, strict=True):
        if VIEW in given:
            kind = graph.type_of(value)
            place = Place(choice.program.file)
            own, padded = logical_shape(given, kind.shape, place), padded_shape(given, kind.shape, place)
            lies = _laid_out(spec, kind.shape, target)
            tensor = Tensor("", kind_of("", own), lies, 0, padded=padded if padded != own else (), viewed=kind.shape)
            tensor = replace(tensor, interleaved=interleaved_of(given, padded, place))
            outside = _spec_between_calls(tensor, target)
            steps = moves(kind.num_bytes, len(kind.shape), spec, outside, target.mesh.shape)
            assert steps is not None, "no array is a sum"
            total += sum(map(target.model.move_s, steps))
    return total


def _laid_out(spec: Spec, shape: Shape, target: Target) -> Dims:
    """Returns the axes that split each dim of a stored array."""
    names = target.names
    return tuple(tuple(names[axis] for axis in axes) for axes in dim_axes(spec, len(names), len(shape)))


def _spec_between_calls(tensor: Tensor, target: Target) -> Spec:
    """Returns how an array that is stored in blocks lies between calls, of which blocks are no part of a device."""
    padded, stored = tensor.padded or tensor.shape, tensor.viewed
    interleaved = tensor.interleaved or ((),) * len(padded)
    entries, at = dict[str, Spec](), 0
    between = dims_between_calls(tensor, dict(target.mesh.axes))
    for size, blocks, axes in zip(padded, interleaved, between, strict=True):
        is_viewed = stored[at] != size
        stays = axes if not is_viewed else () if blocks else [axis for axis in axes if axis in tensor.dims[at]]
        entries |= {axis: split(at) for axis in stays}
        at += 2 if is_viewed else 1
    return pack(entries.get(axis, REPLICATED) for axis in target.names)
