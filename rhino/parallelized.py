"""`parallelize`: a training step for one device, planned for many, called as before. Shaped like `jax.jit`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from time import perf_counter
from typing import Any, Final, Literal, SupportsIndex

import jax

from rhino.call import CallShape, Key, Pieces, kind_name, shapes_of
from rhino.entry import CallOptions, Entry, make_entry
from rhino.ir.cluster.mesh import parse_meshes
from rhino.ir.cluster.placement import numbers_text
from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.plan.plan import AUTOTUNE, SHARD
from rhino.ir.plan.plan import Plan as PlanFacts
from rhino.ir.program.loss_scale import NAME
from rhino.ir.units import format_bytes, format_seconds
from rhino.jit_program import Getter, NewShapesError
from rhino.keywords import (
    budget_bytes,
    count,
    devices_of,
    fixed_in_python,
    path_of,
    remat_shares,
    replicas_text,
    shared_batches,
    stages_of,
    texts,
)
from rhino.loss_scale import LossScale, first_loss_scale, loss_scale_of, with_loss_scale
from rhino.new_arguments import differences
from rhino.nonfinite import IGNORE, POLICIES, RAISE, SKIP, FiniteCheck, keeping_finite
from rhino.passes.attention.blockwise import parse_attention
from rhino.passes.pipeline.rematerialize import BY_STAGE
from rhino.passes.planner.aot import smaller_budget
from rhino.passes.planner.request import BY_SCOPES, COMPARE, MEMORY, MOST_COMPILES, refuse_beside_scopes
from rhino.passes.precision.mixed_precision import check_amp
from rhino.passes.sharding.planning_pass import AUTO
from rhino.pins import Pins, pin_texts
from rhino.plan import Plan
from rhino.plan_options import LEVEL, PlanOptions
from rhino.runtime.distributed.jax_job import most_of_processes
from rhino.split_array import whole
from rhino.stage_programs import StagePrograms
from rhino.state import make_state
from rhino.step_log import StepLog, logged_ranks
from rhino.strategies.pipeline.schedules import find_schedule
from rhino.verified import check_step, expected_step

MeshLike = str | jax.sharding.Mesh | jax.sharding.AbstractMesh
OnNewShapes = Literal["plan", "error"]
OnNonfinite = Literal["raise", "skip", "ignore"]
Search = Literal["shard", "autotune"]

_LOG: Final = logging.getLogger("rhino")
"""At INFO: when and why a function is planned, and what came of it."""

_MAY_HAVE_CHANGED: Final = (NewShapesError, TypeError, ValueError, LookupError, AttributeError)
"""What a call raises for arrays that its program was not made for.

Types and values are JAX's, the last two those of `Getter`s.
"""
_NAMES: Final = "give names of arguments, as 'x' or 'x:0', or a list of them"


class Parallelized:
    """A function that runs on many devices; made by `parallelize`.

    The first call with arguments of some shapes plans and compiles; from then on a call is a call of what jit made.
    Results are ordinary arrays with the plan's shardings. Arguments may lie anywhere: what is committed to another
    place is moved.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        shape: CallShape,
        options: CallOptions,
        on_new_shapes: OnNewShapes,
        on_nonfinite: OnNonfinite = IGNORE,
    ) -> None:
        functools.update_wrapper(self, fn)
        if on_nonfinite == SKIP:
            fn = keeping_finite(fn, shape.signature, shape.donated)
        self._finite = FiniteCheck(shape.name) if on_nonfinite == RAISE else None
        self._loss_scale = first_loss_scale() if options.is_scaled else None
        self._fn = with_loss_scale(fn, shape.signature) if options.is_scaled else fn
        self._shape, self._options, self._on_new_shapes = shape, options, on_new_shapes
        self._entries: dict[Key, Entry] = {}
        self._run: Any = None  # what jit gave for the last call, if arguments can be passed on as they are
        self._watched: tuple[Getter, ...] = ()
        self._runs: dict[Key, Callable[..., Any]] = {}
        self._verified: set[Key] = set()
        self._fitting: dict[Key, int] = {}  # bytes of compiled programs, which were seen to fit the budget
        self._refused: dict[Key, RhinoError] = {}  # no compiled program fits the budget
        self._has_state = False  # `init` has made some

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's own
        """Runs the function on the devices of its plan."""
        run = self._run
        if run is not None and not kwargs:
            try:
                for get in self._watched:
                    if get(args).is_deleted():
                        raise NewShapesError
                return self._own(run(*args) if self._loss_scale is None else run(*args, self._loss_scale))
            except _MAY_HAVE_CHANGED:
                pass  # what has, is seen below
        return self._dispatch(self._split(args, kwargs))

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale of the next call of a step in f16, which is state: save it beside the step's, and set it.

        None for a step that has none.
        """
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, value: LossScale) -> None:
        """Raises RHI-JAX-002 where the step has none, or that is none."""
        if self._loss_scale is None:
            what = f"{self._shape.name} has no loss scale"
            raise RhinoError("RHI-JAX-002", what, fix="give amp='f16', or leave it out")
        self._loss_scale = loss_scale_of(value)

    def _split(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Pieces:
        """Returns a call's arrays, with the loss scale where there is one, apart from its constants."""
        pieces = self._shape.split(args, kwargs)
        return pieces if self._loss_scale is None else pieces.with_named(NAME, self._loss_scale)

    def _own(self, result: Any) -> Any:  # noqa: ANN401 - the function's own
        """Returns the results of a step without its next loss scale, which is kept, and looks at earlier losses."""
        if self._loss_scale is not None:
            result, self._loss_scale = result
        if self._finite is not None:
            self._finite.take(result)
        return result

    def check_finite(self) -> None:
        """Waits for all calls, and raises RHI-RUN-011 where a loss is not finite and `on_nonfinite` is "raise"."""
        if self._finite is not None:
            self._finite.read()

    def plan(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401 - the function's own
        """Returns the plan for arguments of these shapes (arrays or `jax.ShapeDtypeStruct`s). Needs no devices."""
        return self._entry(self._split(args, kwargs)).plan

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:  # noqa: ANN401 - the function's own
        """Returns the planned program, lowered by jit.

        Its `.compile()` returns a program that takes the arrays of a call, without the constants. One with a loss scale
        takes that behind them, and returns it beside the function's results.

        Raises:
            RhinoError: RHI-JAX-009 for a plan in stages, which is several programs.
        """
        pieces = self._split(args, kwargs)
        program = self._entry(pieces).program
        if isinstance(program, StagePrograms):
            what = f"the plan of {self._shape.name} is in stages: there is no one program to lower"
            raise RhinoError(
                "RHI-JAX-009", what, fix="look at its programs: plan.save(folder) writes them as StableHLO"
            )
        # by their shapes: jit refuses to lower for arrays that are committed elsewhere
        leaves, tree = jax.tree.flatten(pieces.values)
        lowered: jax.stages.Lowered = program.run.lower(*jax.tree.unflatten(tree, shapes_of(leaves)))
        return lowered

    def init(self, init_fn: Callable[..., Any], *args: Any, argnums: int | tuple[int, ...] = 0, **kwargs: Any) -> Any:  # noqa: ANN401
        """Returns the result of `init_fn(*args, **kwargs)`, made where the plan wants it.

        Each device makes its own shards. The result is argument `argnums` of the function, as planned last; with
        several numbers, a tuple of arguments.

        Raises:
            RhinoError: RHI-JAX-006 where nothing is planned, RHI-JAX-004 where `init_fn` gives another tree, shape or
                dtype.
        """
        if not self._entries:
            name, plan = self._shape.name, self._options.plan
            what = f"{name} is not planned yet, so the shardings of its state are not known"
            if plan is not None:
                what = (
                    f"{name} has a plan, but is not traced yet, so the arguments that make up its state are not known"
                )
            how = "plan first" if plan is None else "trace it first, which searches nothing"
            raise RhinoError("RHI-JAX-006", what, fix=f"{how}: {name}.plan(jax.eval_shape(init_fn, key), batch)")
        self._has_state = True
        return make_state(list(self._entries.values())[-1], self._shape, argnums, init_fn, args, kwargs)

    def _dispatch(self, pieces: Pieces) -> Any:  # noqa: ANN401 - the function's own
        if self._refused and (known := self._refused.get(self._shape.key(pieces))):
            raise replace(known)
        entry = self._entry(pieces)
        self._shape.check_alive(pieces)
        own = self._shape.with_own_buffers(pieces)
        if not isinstance(entry.program, StagePrograms):
            own = replace(own, values=whole(own.values))
        entry = self._within_budget(entry, own)
        program, run = entry.program, self._runner(entry)
        is_first = self._options.verify and program.key not in self._verified
        expected = expected_step(self._fn, own, entry) if is_first else None
        try:
            result = run(*own.values)
        except ValueError:  # some of it is committed to another place
            result = run(*program.place(own.values))
        if expected is not None:
            check_step(expected, result, entry, self._options.plan_options.op_rules)
            self._verified.add(program.key)
        self._run = None if self._shape.static or set(pieces.names) - {NAME} else run
        self._watched = program.watched
        return self._own(result)

    def _runner(self, entry: Entry) -> Callable[..., Any]:
        """Returns what runs the program of an entry, and logs its steps where somebody listens."""
        key = entry.program.key
        if key not in self._runs:
            ranks, program = logged_ranks(entry.plan), entry.program
            log = StepLog(entry.traced, entry.plan, program, ranks, self._fitting[entry.traced.key]) if ranks else None
            self._runs[key] = program.call if log is None else log.run
        return self._runs[key]

    def _within_budget(self, entry: Entry, pieces: Pieces) -> Entry:
        """Returns the entry for a call, planned again within less where its compiled program is over the budget.

        Processes of a job decide alike: by the one whose program takes most. Raises RHI-SOLVE-001 where there is no
        such plan, which is then known.
        """
        key, budget = entry.traced.key, entry.plan.facts.predicted.budget_bytes
        while key not in self._fitting:
            compiled = most_of_processes(entry.program.compiled_bytes(pieces.values))
            if not compiled:
                _LOG.warning("%s: XLA does not say what its compiled program takes: not checked", self._shape.name)
            if compiled <= budget:
                self._fitting[key] = compiled
                break
            try:
                entry = self._smaller(entry, pieces, compiled, budget)
            except RhinoError as error:
                if error.exit_code == ExitCode.DOES_NOT_FIT:
                    self._refused[key] = error
                raise
        return entry

    def _smaller(self, entry: Entry, pieces: Pieces, compiled: int, budget: int) -> Entry:
        """Returns an entry whose plan is predicted to take as much less as the compiled program took too much."""
        name, predicted = self._shape.name, entry.plan.facts.predicted.largest_peak_bytes
        what = f"the compiled program of {name} takes {format_bytes(compiled)} per device, of {format_bytes(budget)}"
        notes = (f"it was predicted to take {format_bytes(predicted)}",)
        request = replace(self._options.plan_options, budget_bytes=smaller_budget(predicted, compiled, budget))
        if self._options.plan is not None:
            raise RhinoError("RHI-SOLVE-001", what, notes=notes, fix="plan again with budget=, or give a larger one")
        _LOG.info("%s is planned again: %s", name, what)
        key = entry.traced.key
        try:
            made = make_entry(self._fn, self._shape, pieces, key, replace(self._options, plan_options=request))
        except RhinoError as error:
            if error.exit_code != ExitCode.DOES_NOT_FIT:
                raise
            del self._entries[key]
            fix = "give a larger budget, more devices or a smaller batch, or rematerialize (remat=)"
            raise RhinoError("RHI-SOLVE-001", f"{what}, and no other plan does", notes=notes, fix=fix) from None
        found = made.plan.facts
        facts = replace(found, predicted=replace(found.predicted, budget_bytes=budget))
        made = self._entries[key] = replace(made, plan=replace(made.plan, facts=facts))
        if self._has_state:
            _LOG.info("%s: what init has made is moved where the new plan wants it", name)
        return made

    def _entry(self, pieces: Pieces) -> Entry:
        key = self._shape.key(pieces)
        if key not in self._entries:
            why = self._why(pieces, key)
            if why and self._on_new_shapes == "error":
                raise self._other_shapes(why)
            before = list(self._entries.values())[-1] if self._entries else None
            name, start_s = self._shape.name, perf_counter()
            _LOG.info("%s is planned %s", name, f"again: {'; '.join(why)}" if why else "for its first arguments")
            made = self._entries[key] = make_entry(self._fn, self._shape, pieces, key, self._options, before)
            facts, took = made.plan.facts, format_seconds(perf_counter() - start_s)
            _LOG.info("%s, after %s: %s, for %s%s", name, took, facts.form(), facts.cluster_name, _idle(facts))
        return self._entries[key]

    def _why(self, pieces: Pieces, key: Key) -> tuple[str, ...]:
        """Returns why a call is planned again, though other arguments were; nothing for the first."""
        if not self._entries:
            return ()
        titles = [self._shape.title(where) for where in self._shape.places(pieces)]
        found = differences(key, list(self._entries)[-1], titles, self._shape.title)
        return found or ("the pytrees differ in their nodes",)

    def _other_shapes(self, why: tuple[str, ...]) -> RhinoError:
        return RhinoError(
            "RHI-JAX-003",
            f"{self._shape.name} is called with other arguments than it was planned for",
            notes=why,
            fix="pass what it was planned for, or leave out on_new_shapes='error', and it is planned again",
        )


def _idle(plan: PlanFacts) -> str:
    """Returns which devices of the cluster a plan does not use, in words; nothing where it uses all."""
    idle = sorted(plan.machine().in_order[plan.num_devices :])
    if not idle:
        return ""
    return (
        f"; device {idle[0]} stays idle"
        if len(idle) == 1
        else f"; devices {numbers_text(idle).replace('-', ' to ')} stay idle"
    )


def parallelize(
    fn: Callable[..., Any] | None = None,
    *,
    cluster: str | None = None,
    mesh: MeshLike | None = None,
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Iterable[str] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    pins: Pins = (),
    forbid: Sequence[str] = (),
    pad: str | Sequence[str] = (),
    axis_roles: dict[str, str] | None = None,
    constraints: str | PathLike[str] | None = None,
    op_rules: str | PathLike[str] | None = None,
    budget: str | float | None = None,
    level: int = LEVEL,
    devices: Sequence[jax.Device] | None = None,
    on_new_shapes: OnNewShapes = "plan",
    on_nonfinite: OnNonfinite = IGNORE,
    stages: SupportsIndex | str | None = None,
    replicas: SupportsIndex | str | None = None,
    micro_batches: SupportsIndex | None = None,
    schedule: str | None = None,
    remat: float | str | None = None,
    recompute: object = None,
    batch: str | Sequence[str] = (),
    batch_statistics: str = "",
    amp: str = "",
    attention: str = "",
    offload: bool = False,
    search: Search = "shard",
    jobs: SupportsIndex | None = None,
    aot: bool | str = False,
    compiles: SupportsIndex | None = None,
    plan: Plan | None = None,
    verify: bool = False,
) -> Any:  # noqa: ANN401 - a `Parallelized`, or without `fn` what makes one
    """Returns `fn` parallelized: the search chooses how it runs on many devices, and calling it runs it so.

    Args:
        fn: a function of arrays, as for `jax.jit`; without it, a decorator is returned.
        cluster: a preset's name or a cluster file; left out, the host devices that are there.
        mesh: the mesh, as "8", "2x4", "x=2,y=4" or JAX's own, or "auto" for the best; left out, an axis for each level
            of the cluster.
        donate_argnums: arguments whose buffers the results may take, as for `jax.jit`; so are `donate_argnames`.
        donate_argnames: see `donate_argnums`.
        static_argnums: arguments that are constants, as for `jax.jit`; so are `static_argnames`.
        static_argnames: see `static_argnums`.
        pins: tensors that lie as you say: partition specs (or texts) by name, or texts as `rhino-opt --pin` takes them.
        forbid: what tensors must not do, as `rhino-opt --forbid` takes it.
        pad: names of arguments that may be stored padded where devices do not divide them, or NAME:DIM; "*" allows all.
        axis_roles: "batch" or "model" by axis: what is split along it.
        constraints: a TOML file of such constraints.
        op_rules: a TOML file of sharding rules for custom calls.
        budget: memory per device, as "16GiB" or in bytes; left out, what the cluster's devices have.
        level: 2 stops the search early, 3 goes on.
        devices: what to run on; left out, those of a JAX mesh, or JAX's first ones.
        on_new_shapes: what to do when arguments of other shapes are passed: "plan" for them too, or "error".
        on_nonfinite: what to do when a loss, a result that is a number beside the state, is NaN or infinite: "raise"
            RHI-RUN-011, up to two calls later; "skip" the update, so that the state, which is what is donated, stays
            as it was; or "ignore" it. All devices and processes decide alike.
        stages: into how many stages of a pipeline the function is cut, each on devices of its own; `mesh` is then that
            of one stage, or that of each, as "2x2;2;2". As "4+2+2", the devices of each stage. With "scopes" each
            outermost `rhino.replicate` and `rhino.split` is a stage, on as many devices as it says. Left out, one, or
            as many as `rhino.stage_boundary` says.
        replicas: on how many ranks the function runs as data parallelism, each with a share of the micro-batches by its
            speed; as "5;3", on ranks that take so many. `mesh` is then that of one rank.
        micro_batches: into how many parts the batch is taken, one after the other; with stages or replicas, left out,
            the best number is searched for.
        schedule: in which order stages run: "1f1b", "eager-1f1b", "gpipe", "interleaved", "zero-bubble" or
            "zero-bubble-h2".
        remat: the share of the activation stash that the backward pass recomputes, 0 to 1; left out, none. As "0;0.5"
            one for each stage, where stages, micro-batches and mesh are given. With "auto" each stage recomputes as
            much as its memory asks for.
        recompute: refused: it is `remat` now.
        batch: names of arguments that have the batch at dim 0, or NAME:DIM; left out, it is found.
        batch_statistics: "per-part" takes sums over the batch that examples need (normalization, balance losses) of
            each micro-batch: what is computed is then a step with such statistics. "per-part:NAME" those of ops with
            such names. "8-parts" takes those of each of 8 equal parts of the batch, whatever the micro-batches are, as
            data parallelism by hand does on 8 devices.
        amp: "bf16" computes in bf16 what is written in f32, with parameters, optimizer states and sums in f32: what is
            computed is then that step. "bf16:sums" sums up gradients of parameters in bf16, too. "f16" computes in f16,
            and scales the loss by `loss_scale`, which calls keep: save it with the state.
        attention: "blockwise" computes attention in loops over blocks of keys, so that nothing is stored for each query
            and key. "blockwise:256" has at most so many keys in a block.
        offload: True lets arguments that only their update reads, as moments of optimizers, and what the forward pass
            saves for the backward pass lie in host memory, where
            the budget binds.
        search: "shard" searches for shardings; "autotune" also for the stages, micro-batches, mesh, schedule and
            rematerialization that are not given.
        jobs: how many processes autotuning uses; the plan does not depend on it. Left out, one a core.
        aot: True lets the target's own compiler choose among the search's best plans and experts' plans, compiled
            without a device; "memory" only checks that the compiled plan fits.
        compiles: how many plans `aot` compiles at most; left out, 10.
        plan: a plan that was kept, instead of a search. It is refused where the function is another one by now.
        verify: compute the first step of each program by JAX alone, too, on one device where that fits, and compare:
            results that differ by more than rounding raise RHI-RUN-003, with the first op that differs.

    Raises:
        RhinoError: RHI-JAX-002 where numbers or names of arguments do not fit `fn`. Calls raise the others of
            docs/parallelize.md.
    """
    if fn is None:
        options = {key: value for key, value in locals().items() if key != "fn"}
        return lambda one: parallelize(one, **options)
    if not callable(fn):
        raise RhinoError(
            "RHI-JAX-002", f"parallelize takes a function, not {kind_name(fn)}", fix="parallelize(step, cluster=...)"
        )
    if not isinstance(plan, Plan | None):
        raise RhinoError("RHI-JAX-002", f"plan is {kind_name(plan)}", fix="give rhino.Plan.load(path)")
    if on_new_shapes not in ("plan", "error"):
        raise RhinoError("RHI-JAX-002", f"on_new_shapes is {on_new_shapes!r}", fix="say 'plan' or 'error'")
    if on_nonfinite not in POLICIES:
        raise RhinoError("RHI-JAX-002", f"on_nonfinite is {on_nonfinite!r}", fix=f"say one of {', '.join(POLICIES)}")
    if recompute is not None:
        raise RhinoError(
            "RHI-JAX-002",
            "recompute, the share that was kept, is remat now, the share that is recomputed",
            fix="give remat=1 - K in place of recompute=K",
        )
    text = _mesh_text(mesh)
    num_stages, own_meshes = stages_of(stages, text)
    named = parse_meshes(text) if text and text != AUTO else own_meshes
    other_mesh = (
        text and plan is not None and named * (plan.facts.num_ranks if len(named) == 1 else 1) != plan.facts.meshes
    )
    given = [
        name
        for name, one in (("mesh", other_mesh), ("pins", pins), ("forbid", forbid), ("axis_roles", axis_roles))
        if one
    ]
    given += [name for name, one in (("constraints", constraints), ("budget", budget)) if one is not None]
    given += [
        name
        for name, one in (
            ("stages", stages),
            ("replicas", replicas),
            ("micro_batches", micro_batches),
            ("schedule", schedule),
            ("jobs", jobs),
        )
        if one is not None
    ]
    given += [
        name
        for name, one in (
            ("remat", remat is not None),
            ("batch", batch),
            ("batch_statistics", batch_statistics),
            ("amp", amp),
            ("attention", attention),
            ("offload", offload),
            ("pad", pad),
            ("search", search != SHARD),
            ("level", level != LEVEL),
            ("aot", aot),
        )
        if one
    ]
    if plan is not None and given:
        raise RhinoError(
            "RHI-JAX-002",
            f"{given[0]} and plan exclude each other: with a plan, nothing is searched",
            fix="leave one out",
        )
    shape = CallShape(
        fn, (_each(static_argnums), _each(static_argnames)), (_each(donate_argnums), _each(donate_argnames))
    )
    if devices is None and isinstance(mesh, jax.sharding.Mesh):
        devices = list(mesh.devices.flat)
    asked_replicas = "" if replicas is None else replicas_text(replicas)
    plan_options = PlanOptions(
        cluster="" if cluster is None else path_of("cluster", cluster),
        meshes=named,
        searches_mesh=text == AUTO,
        budget_bytes=budget_bytes(budget),
        level=level,
        pins=functools.partial(pin_texts, pins),
        forbid=texts("forbid", forbid, "give a list of such texts, as ['w=x']"),
        pad=texts("pad", pad, _NAMES, is_one_enough=True),
        axis_roles=tuple(f"{axis}={role}" for axis, role in (axis_roles or {}).items()),
        constraints="" if constraints is None else path_of("constraints", constraints),
        op_rules="" if op_rules is None else path_of("op_rules", op_rules),
        micro_batches=count("micro_batches", micro_batches) or (shared_batches(asked_replicas) if named else None),
        batch="; ".join(texts("batch", batch, _NAMES, is_one_enough=True)),
        batch_statistics=batch_statistics,
        amp=amp,
        attention=attention,
        offload=bool(offload),
        remat=remat_shares(remat, num_stages),
        recomputes=remat == BY_STAGE,
        stages=num_stages,
        by_scopes=stages == BY_SCOPES,
        replicas=asked_replicas,
        schedule=schedule or "",
        search=search,
        jobs=count("jobs", jobs),
        aot=COMPARE if aot is True else aot or "",
        compiles=count("compiles", compiles) or MOST_COMPILES,
    )
    if compiles is not None and not aot:
        what = "compiles is given, and nothing is compiled to be compared"
        raise RhinoError("RHI-JAX-002", what, fix="give aot=True too, or leave compiles out")
    if plan_options.aot not in ("", COMPARE, MEMORY):
        raise RhinoError("RHI-JAX-002", f"aot is {aot!r}", fix=f"give True, False or {MEMORY!r}")
    if plan_options.search not in (SHARD, AUTOTUNE):
        fix = "'whole' is 'autotune' now" if plan_options.search == "whole" else "give 'shard' or 'autotune'"
        raise RhinoError("RHI-JAX-002", f"search is {plan_options.search!r}", fix=fix)
    if amp:
        check_amp(amp)
    if attention:
        parse_attention(attention)
    if plan_options.replicas and (plan_options.schedule or (num_stages or 1) > 1):
        other = "schedule" if plan_options.schedule else "stages"
        what = f"replicas and {other} are given, and a replica is no pipeline"
        raise RhinoError("RHI-JAX-002", what, fix="leave one out")
    if plan_options.by_scopes:
        with fixed_in_python():
            refuse_beside_scopes({"mesh": text, "replicas": replicas, "search": search if search != SHARD else None})
    if plan_options.schedule:
        find_schedule(plan_options.schedule)  # raises for another
    return Parallelized(
        fn,
        shape,
        CallOptions(plan_options, plan, _abstract_mesh(mesh), devices_of(devices), bool(verify)),
        on_new_shapes,
        on_nonfinite,
    )


def _each(given: Any) -> tuple[Any, ...]:  # noqa: ANN401 - one, or several
    return (given,) if isinstance(given, int | str) else tuple(given)


def _abstract_mesh(mesh: MeshLike | None) -> jax.sharding.AbstractMesh | None:
    """Returns JAX's mesh without its devices; None where it is not JAX's, or where types are to be split over it."""
    if mesh is None or isinstance(mesh, str) or any(kind != jax.sharding.AxisType.Auto for kind in mesh.axis_types):
        return None
    abstract: jax.sharding.AbstractMesh = mesh.abstract_mesh
    return abstract


def _mesh_text(mesh: MeshLike | None) -> str:
    if mesh is None:
        return ""
    if isinstance(mesh, str):
        if mesh != AUTO:
            parse_meshes(mesh)  # raises for what is none
        return mesh
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise RhinoError(
            "RHI-JAX-002",
            f"mesh is no mesh, but {mesh!r:.60}",
            fix="give sizes as '2x4' or 'x=2,y=4', or a jax.sharding.Mesh",
        )
    return ",".join(f"{name}={size}" for name, size in mesh.shape.items())
