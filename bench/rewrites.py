"""Training steps under every rewrite, in plans drawn at random, against one device.

In one program a step is rewritten, and then has a plan that nobody would choose (`drawn_plans.py`); what only its
update reads may lie in host memory. In stages the cut, the micro-batches, the schedule, the mesh of a rank, and some
shardings of arguments are drawn. The ways:

    plain          as it is
    joined         all collectives that can be joined are; in ways below half of the time
    viewed         dims that are cut into blocks are stored as blocks
    amp            in mixed precision
    attention      with its attention in loops over blocks of four keys
    remat          half of what is kept for the backward pass is computed in it
    parts          in micro-batches
    statistics     in micro-batches whose statistics are their own, against the same on one device
    all            several of these, drawn
    stages         in 2 to 4 stages
    staged-amp     as well, in mixed precision
    staged-blocks  as well, with its attention in loops over blocks
    staged-parts   as well, with statistics of each micro-batch

What mixed precision makes of a step is compared in f32, with its one-device program: its bf16 is read as f32 once all
else is done, so that rounding hides nothing. A result that differs all the same is compared with what the last bits of
the inputs make of it on one device: a gradient that is zero but for rounding, as of a bias in front of a normalization,
has no digit to agree in. Where it differs by more, each op of one program is compared with what one device makes of its
operands: rounding that has grown is no fault, but reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from drawn_plans import MOODS, NotDrawnError, drawable, ways_to_run
from longer_floats import in_f32
from models import step_text
from pipelines import Setting, plan
from pipelines import run as run_pipeline
from planning import Reference, auto_shard, reference, run_on, sharded
from stranger_models import SMALL, STRANGERS

from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import wrap_manual
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.instructions import Layout
from rhino.ir.plan.instructions import Step as Instructions
from rhino.ir.program.collectives import module_stats
from rhino.ir.request.patterns import dotted
from rhino.passes.planner.choose_layouts import StashShare
from rhino.passes.sharding.choose_shardings import ShardingChoice, predicted_stats
from rhino.passes.sharding.localize import localized_copy
from rhino.runtime.executor.compare import TOLERANCES, Difference, coarsest_tolerance, differences, worst
from rhino.runtime.executor.executable import Host, compile_module
from rhino.runtime.executor.inputs import nonnegative_arguments
from rhino.runtime.executor.signature import Signature, read_signature
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.tools.first_difference import first_difference
from rhino.tools.plan_steps import signature_of

NUM_STEPS: Final = 2
_NUM_DEVICES: Final = 8
_MESHES: Final = ("2", "3", "4", "8", "2x2", "2x4", "4x2", "2x2x2")
_NUM_PINS: Final = 3
_NUM_NEARBY: Final = 3
_ROUNDINGS: Final = 8.0
"""How many times what the last bits of inputs change may come of summing in another order."""
_SMALL: Final = 1e-3
_F32: Final = 1e-5

_AMP: Final = "rhino-amp{amp=bf16}"
_BLOCKS: Final = "blockwise:4"
_ATTENTION: Final = f"rhino-attention{{attention={_BLOCKS}}}"
_PARTS: Final = "micro-batch{num=2}"
_STATISTICS: Final = "micro-batch{num=2 batch-statistics=per-part}"
_REMAT: Final = "rhino-remat{{remat={remat}}}"
_SHARES: Final = (0.25, 0.5, 1.0)
"""Of the stash, as a step that does not fit takes them too (passes/planner/choose_layouts.py)."""
_VIEWS: Final = "rhino-materialize-strides{{parts={parts}}}"

_REWRITES: Final[Mapping[str, tuple[str, ...]]] = {
    "plain": (),
    "joined": (),
    "viewed": (_VIEWS,),
    "amp": (_AMP,),
    "attention": (_ATTENTION,),
    "remat": (_REMAT,),
    "parts": (_PARTS,),
    "statistics": (_STATISTICS,),
    "all": (_AMP, _ATTENTION, _PARTS, _REMAT, _VIEWS),
}
"""The passes of each way in one program, in the order in which they run."""
_STAGED: Final[Mapping[str, dict[str, str]]] = {
    "stages": {},
    "staged-amp": {"amp": "bf16"},
    "staged-blocks": {"attention": _BLOCKS},
    "staged-parts": {"batch-statistics": "per-part"},
    "replicas": {"replicas": "2"},
}
"""The options of each way on several ranks: in stages, or as replicas that take one micro-batch, and the others."""
_RECOMPUTED: Final = "recomputed"
"""The way of a step that the search recomputes some of unasked: within a share of the memory that it would take."""
_BUDGETS: Final = (0.5, 0.9)
_OTHER_STEP: Final = (_AMP, _STATISTICS)
"""Passes that make another step: mixed precision rounds constants, and statistics of a part are not those of all."""

_NOT_COMPILED: Final = "RHI-RUN-001"
"""What is no refusal of a step but a fault of the program that was made of it."""

WAYS: Final = (*_REWRITES, _RECOMPUTED, *_STAGED)


@dataclass(frozen=True, slots=True)
class Step:
    """A training step as StableHLO text, and what arguments are that are not to be drawn, by index."""

    name: str
    text: bytes
    given: Mapping[int, Host] = field(default_factory=dict)


def small_step(name: str) -> Step:
    """Returns the training step of a model of stranger_models.py in its small size, or of models.py.

    Raises:
        ModuleNotFoundError: the library that the model is written in is not installed.
    """
    if name not in STRANGERS:
        return Step(name, step_text(name))
    made = STRANGERS[name](SMALL)
    return traced(name, made.step, made.state, made.batch)


def traced(name: str, step: Any, state: Any, batch: Any) -> Step:  # noqa: ANN401 - a function of two pytrees
    """Returns a step of a state and a batch with their values, but for zeros, which would hide what reads them.

    Where all of an argument is zero, small numbers are drawn; where a root is taken of it, the rule of other programs
    draws it, for a root of almost nothing makes much of rounding.
    """
    lowered = jax.jit(step, donate_argnums=0, keep_unused=True).lower(state, batch)
    text = str(lowered.as_text(debug_info=True)).encode()
    roots = nonnegative_arguments(read_module(text, name, make_context()))
    random = np.random.default_rng(0)
    given: dict[int, Host] = {}
    for number, leaf in enumerate(jax.tree.leaves((state, batch))):
        value = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        if not jnp.issubdtype(value.dtype, jnp.floating) or np.any(value):
            given[number] = value
        elif number not in roots:
            given[number] = random.uniform(-_SMALL, _SMALL, value.shape).astype(value.dtype)
    return Step(name, text, given)


def _is_key(leaf: Any) -> bool:  # noqa: ANN401 - of a pytree
    return isinstance(leaf, jax.Array) and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def try_way(step: Step, way: str, seed: int) -> tuple[bool, str]:
    """Returns whether a step does in a way what one device does, and a line about it.

    A refusal is one of the lines, and that a program has other collectives than its plan predicts stands in it. Each
    step has draws of its own.
    """
    drawn = np.random.default_rng([seed, crc32(f"{step.name} {way}".encode())])
    attempt = _try_recomputed if way == _RECOMPUTED else _try_staged if way in _STAGED else _try_one_program
    try:
        return attempt(step, way, drawn)
    except RhinoError as error:
        is_refusal = error.exit_code == ExitCode.BAD_INPUT and error.id != _NOT_COMPILED
        return is_refusal, f"refused: {error.id} {error.what}"
    except NotDrawnError as error:
        return True, str(error)


def _try_one_program(step: Step, way: str, random: np.random.Generator) -> tuple[bool, str]:
    mood, mesh = str(random.choice(MOODS)), str(random.choice(_MESHES))
    parts = prod(parse_mesh(mesh).shape)
    passes = _REWRITES[way]
    if way == "all":
        passes = tuple(one for one in passes if random.integers(3))
    passes = _filled(passes, parts, float(random.choice(_SHARES)))
    rewritten = _behind(step, passes)
    expected = _expected(step, [one for one in passes if one in _OTHER_STEP])
    is_joined = way == "joined" or (way != "plain" and bool(random.integers(2)))
    drawn = drawable(rewritten.decode(), mesh, is_joined=is_joined)
    chosen = drawn.plan(int(random.integers(1 << 31)), mood)
    told = f"{mood} on {mesh}; {', '.join(one for one in passes if 'remat=' in one) or 'all is stored'}"
    return _run_plan(step, drawn.module, chosen, expected, told)


def _try_recomputed(step: Step, _way: str, random: np.random.Generator) -> tuple[bool, str]:
    """Returns whether a plan of the search is right in less memory than it would take, recomputing what it has to."""
    mesh = str(random.choice(_MESHES))
    _, remarks = sharded(step.text, step.name, auto_shard("cpu8", mesh, level=2))
    peak_bytes = remarks.result(ShardingChoice).answer.peak_bytes
    budget = f"{int(peak_bytes * random.uniform(*_BUDGETS))}B"
    try:
        module, remarks = sharded(step.text, step.name, auto_shard("cpu8", mesh, budget, level=2))
    except RhinoError as error:
        if error.exit_code != ExitCode.DOES_NOT_FIT:
            raise
        return True, f"{budget} of {peak_bytes:.0f} on {mesh}: no plan fits"
    found = remarks.find(StashShare)
    share = found.share if found else 0.0
    told = f"{budget} of {peak_bytes:.0f} on {mesh}: {share:g} of the stash is recomputed"
    return _run_plan(step, module, remarks.result(ShardingChoice).plan, _expected(step, []), told)


def _run_plan(step: Step, module: ir.Module, chosen: ShardingPlan, expected: Expected, told: str) -> tuple[bool, str]:
    """Returns whether a plan gives what is expected, and a line about it."""
    local = localized_copy(module, step.name)
    predicted, sent = predicted_stats(chosen), module_stats(local)
    executable = compile_module(_widened(wrap_manual(local)), jax.devices()[: prod(chosen.sizes)])
    steps = run_on(executable, expected.inputs, NUM_STEPS)
    found, is_equal = compared(executable.signature, steps, expected, _tolerance(step))
    line = f"{told}; {ways_to_run(chosen)}; {sent.total.num} collectives"
    line += "" if predicted == sent else f", {predicted.total.num} predicted"
    line += f"; worst result {found.value.label}, relative error {found.max_rel:.2g}"
    line += ", NaN" if found.has_nan else ""
    if is_equal:
        return True, line
    verdict = first_difference(_widened(module), expected.inputs, jax.devices()[: prod(chosen.sizes)], _tolerance(step))
    return verdict.is_rounding, f"{line}: {verdict.note}"


@dataclass(frozen=True, slots=True)
class Expected:
    """What one device makes of a step, as its text is."""

    text: bytes
    name: str
    exact: Reference

    @property
    def inputs(self) -> list[Host]:
        """The arguments of the first step."""
        return self.exact.inputs

    def changes(self) -> list[list[float]]:
        """Returns how far each result of each step is from itself where the last bits of inputs are others."""
        form = compile_module(read_module(self.text, self.name, make_context()), jax.devices()[:1])
        found = [[0.0] * len(results) for results in self.exact.results]
        for seed in range(_NUM_NEARBY):
            random = np.random.default_rng(seed)
            steps = run_on(form, [_nearby(one, random) for one in self.inputs], NUM_STEPS)
            for most, got, want in zip(found, steps, self.exact.results, strict=True):
                apart = differences(form.signature, got, want)
                most[:] = [max(a, b.max_abs) for a, b in zip(most, apart, strict=True)]
        return found


def _nearby(value: Host, random: np.random.Generator) -> Host:
    """Returns an argument whose numbers differ in their last bit, if it has floating-point numbers."""
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    near: Host = np.nextafter(value, value * random.integers(0, 3, value.shape).astype(value.dtype))
    return near


def compared(
    signature: Signature, steps: Sequence[Sequence[Host]], expected: Expected, tolerance: float
) -> tuple[Difference, bool]:
    """Returns the worst result of all steps, and whether all are as expected, or but for rounding.

    Where some are not, it is the worst of those.
    """
    every = zip(steps, expected.exact.results, strict=True)
    found = [differences(signature, got, want, tolerance) for got, want in every]
    apart = worst(one for results in found for one in results)
    assert apart is not None
    if apart.passes:
        return apart, True
    pairs = zip(found, expected.changes(), strict=True)
    each = [pair for results, changes in pairs for pair in zip(results, changes, strict=True)]
    wrong = worst(one for one, change in each if not one.passes and one.max_abs > _ROUNDINGS * change)
    return wrong or apart, wrong is None


def _expected(step: Step, passes: Sequence[str]) -> Expected:
    """Returns what one device makes of a step behind passes that give it another answer, with its bf16 in f32."""
    text = _behind(step, passes)
    text = in_f32(text.decode()).encode() if passes else text
    return Expected(text, step.name, reference(text, step.name, NUM_STEPS, step.given))


def _tolerance(step: Step) -> float:
    """Returns the relative error allowed of results: a few roundings of f32, or that of a coarser type in the step."""
    coarsest = coarsest_tolerance(read_module(step.text, step.name, make_context()))
    return _F32 if coarsest <= TOLERANCES["float32"] else coarsest


def _widened(module: ir.Module) -> ir.Module:
    """Returns a module whose bf16 is f32; a module without bf16 is returned as it is."""
    text = str(module.operation.get_asm())
    return read_module(in_f32(text).encode(), "widened", make_context()) if "bf16" in text else module


def _filled(passes: Sequence[str], parts: int, remat: float) -> tuple[str, ...]:
    """Returns passes with what their options depend on: how many parts a dim is cut in, and what is recomputed."""
    return tuple(one.format(parts=parts, remat=remat) if one in (_VIEWS, _REMAT) else one for one in passes)


def _behind(step: Step, passes: Sequence[str]) -> bytes:
    """Returns the text of a step behind passes."""
    if not passes:
        return step.text
    pipeline = ",".join(["rhino-normalize", *passes])
    module, _ = sharded(step.text, step.name, pipeline)
    return str(module.operation.get_asm(enable_debug_info=True)).encode()


def _try_staged(step: Step, way: str, random: np.random.Generator) -> tuple[bool, str]:
    module = read_module(step.text, step.name, make_context())
    setting = _draw_setting(random, read_signature(module), _STAGED[way])
    of_parts = _STATISTICS.replace("num=2", f"num={setting.micro_batches}")
    expected = _expected(step, {"staged-amp": [_AMP], "staged-parts": [of_parts]}.get(way, []))
    drawn_words = f"{setting.stages} stages of {setting.mesh}, {setting.micro_batches} x {setting.schedule}"
    drawn_words += f", remat {setting.remat}" if setting.remat else ""
    drawn_words += f", {dict(setting.more)['pin']}" if "pin" in dict(setting.more) else ""
    try:
        made = plan(step.text, step.name, setting)
    except RhinoError as error:
        return error.exit_code == 1, f"{drawn_words}; refused: {error.id} {error.what}"
    execution = made.execution
    made = replace(
        made,
        execution=replace(
            execution,
            step=_step_in_f32(execution.step),
            modules={name: in_f32(text) for name, text in execution.modules.items()},
        ),
    )
    steps = run_pipeline(made, expected.inputs, NUM_STEPS, is_joined=bool(random.integers(2)))
    found, is_equal = compared(signature_of(made.plan), steps, expected, _tolerance(step))
    line = f"{drawn_words}; worst result {found.value.label}, relative error {found.max_rel:.2g}"
    return is_equal, f"{line}{', NaN' if found.has_nan else ''}"


def _step_in_f32(step: Instructions) -> Instructions:
    """Returns the instructions of a step whose bf16 is f32."""

    def wide(layouts: Iterable[Layout]) -> tuple[Layout, ...]:
        return tuple(replace(one, dtype=one.dtype.replace("bf16", "f32")) for one in layouts)

    return replace(
        step,
        programs=tuple(replace(one, inputs=wide(one.inputs), outputs=wide(one.outputs)) for one in step.programs),
        slots=tuple(replace(one, layout=wide([one.layout])[0]) for one in step.slots),
    )


def _draw_setting(random: np.random.Generator, signature: Signature, more: dict[str, str]) -> Setting:
    """Returns how a step is cut on at most eight devices."""
    schedule = str(random.choice(list(SCHEDULES)))
    chunks = SCHEDULES[schedule].stages_per_rank
    ranks = int(random.choice([2, 4])) if chunks == 1 else 2
    mesh = int(random.choice([one for one in (1, 2, 4) if ranks * one <= _NUM_DEVICES]))
    micro_batches = int(random.choice([2, 4]))
    if "replicas" in more:
        ranks, chunks, more = 2, 1, {**more, "replicas": f"{micro_batches - 1};1"}
    pins = _draw_pins(random, signature, mesh) if mesh > 1 and random.integers(2) else ""
    remat = "0.5" if random.integers(3) == 0 else ""
    return Setting(
        ranks * chunks,
        micro_batches,
        schedule,
        str(mesh),
        "cpu8",
        remat=remat,
        ranks=ranks,
        more=tuple({**more, **({"pin": pins} if pins else {})}.items()),
    )


def _draw_pins(random: np.random.Generator, signature: Signature, mesh: int) -> str:
    """Returns pins of some arguments along dims that the mesh divides."""
    places = [
        (one, dim) for one in signature.arguments for dim, size in enumerate(one.shape) if size % mesh == 0 and size
    ]
    pins = {}
    for number in random.permutation(len(places))[:_NUM_PINS]:
        value, dim = places[number]
        dims = ", ".join('{"x"}' if n == dim else "{}" for n in range(len(value.shape)))
        pins[dotted(value.name)] = f"[{dims}]"
    return ";".join(f"{name}={dims}" for name, dims in pins.items())
