"""Whether plans give the answer of one device, and the search the optimum of an oracle.

Programs and plans are drawn at random.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import drawn_attention
import drawn_fused
import drawn_ranks
import jax
import numpy as np
import oracle
import window_forms
from binding_budgets import try_budget
from drawn_plans import MOODS, try_plan
from drawn_scans import drawn, try_scan
from indexed_forms import MESHES, draw_form, try_form
from models import STAGED, step_text
from pipelines import Setting, difference, digest, plan
from pipelines import run as run_pipeline
from planning import Reference, reference
from random_programs import random_steps, try_program
from report import Options, Question, key, option, run, say
from rewrites import WAYS, small_step, try_way
from small_programs import draw
from stranger_models import STRANGERS, stranger_text
from traffic import splitting_cluster

from rhino.runtime.executor.devices import request_host_devices
from rhino.strategies.pipeline.schedules import SCHEDULES


@dataclass(frozen=True, slots=True)
class Tried:
    """A case, whether it does what it should, and a line about it."""

    case: str
    passes: bool
    line: str


def tried(case: str, attempt: Callable[..., tuple[bool, str]], *arguments: object) -> Tried:
    """Returns what becomes of a case; a crash is a finding like any other, and the next case may have another."""
    try:
        return Tried(case, *attempt(*arguments))
    except Exception as error:
        return Tried(case, False, f"{type(error).__name__}: {error}")


def _prepare() -> None:
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time would be LLVM's
    request_host_devices(8, os.environ)


def plans(options: Options) -> Iterator[Tried]:
    """Localize plans of example models that nobody would choose, and compare two steps with one device.

    All collectives are joined that may be, whatever they send. How plans are drawn, and what the moods are:
    `drawn_plans.py`. The exit code is 1 if a plan differs from one device,
    cannot be localized, or predicts other collectives than the local program has.
    """
    _prepare()
    for name in options.models:
        text = stranger_text(name) if name in STRANGERS else step_text(name)
        expected = reference(text, name, num_steps=2)
        for mesh, seed, mood in product(options.meshes, options.seeds, options.moods):
            yield tried(f"{name} on {mesh} seed {seed} {mood}", try_plan, text, name, seed, mood, mesh, expected)


def programs(options: Options) -> Iterator[Tried]:
    """Draw programs out of many ops, localize plans of them that nobody would choose, and compare with one device.

    How programs are drawn: `random_programs.py`. With `--pad` every dim of the arguments is stored padded, to a
    multiple of that number. The exit code is 1 if a program differs from one device under its plan, cannot be
    localized, or predicts other collectives than it has.
    """
    _prepare()
    for seed in options.seeds:
        mood, mesh = MOODS[seed % len(MOODS)], options.meshes[seed % len(options.meshes)]
        steps = random_steps(seed, options.size)
        yield tried(f"seed {seed} {mood} mesh {mesh}", try_program, steps, seed, mood, mesh, options.pad)


def budgets(options: Options) -> Iterator[Tried]:
    """Draw programs out of many ops, plan each within a budget that binds, and compile what is planned.

    How they are drawn and planned: `binding_budgets.py`. The exit code is 1 if a program takes more than its budget.
    """
    request_host_devices(8, os.environ)
    for seed in options.seeds:
        yield tried(f"seed {seed} on {options.cluster}", try_budget, seed, options.size, options.cluster)


def forms(options: Options) -> Iterator[Tried]:
    """Draw gathers, scatters, dynamic slices and their updates, and compare each with one device.

    They come in every layout of index, window, batching and inserted dims. How they are drawn: `indexed_forms.py`. The
    exit code is 1 if one differs from one device under a way to split it, cannot be localized, or predicts other
    collectives than it has.
    """
    _prepare()
    for seed in options.seeds:
        mesh = options.meshes[seed % len(options.meshes)]
        yield tried(f"seed {seed} mesh {mesh}", try_form, draw_form(seed), seed, mesh)


def windows(options: Options) -> Iterator[Tried]:
    """Draw slices, pads, reversals, concatenations, convolutions and other windows, and compare each with one device.

    They come with every stride, padding and dilation. How they are drawn: `window_forms.py`. The exit code is 1 if one
    differs from one device under a way to split it, cannot be localized, or predicts other collectives than it has.
    """
    _prepare()
    for seed in options.seeds:
        mesh = options.meshes[seed // len(window_forms.KINDS) % len(options.meshes)]
        yield tried(f"seed {seed} mesh {mesh}", try_form, window_forms.draw_form(seed), seed, mesh)


def oracles(options: Options) -> Iterator[Tried]:
    """Plan random small programs twice: by the search, and by an oracle that shares no code with it.

    Both must find the same optimum. What is compared: `oracle.py`. The exit code is 1 if one program has another
    optimum, or states that the oracle has not. The last line says which checks were made.
    """
    done = Counter[str]()
    for seed in options.seeds:
        mesh = "x".join(map(str, draw(seed)[1]))
        layers = [oracle.check_layers(seed)] if seed % oracle.LAYERS_EVERY == 0 else []
        for found in (oracle.check(seed, options.budgets), *layers):
            done += found.done
            if found.wrong:
                yield Tried(f"seed {seed} mesh {mesh}", False, "; ".join(found.wrong))
    checks = ", ".join(f"{count} {name}" for name, count in sorted(done.items()))
    yield Tried(f"{len(options.seeds)} programs", True, f"checks: {checks}")


def pipelines(options: Options) -> Iterator[dict[str, Any]]:
    """Compare plans of example models in stages with one device.

    Each model runs some steps under every schedule, with several stages and micro-batches. With `--joined` it is
    planned for slow devices on fast links, so that even small tensors are split over a `--mesh` of several devices, and
    all collectives of each program are joined that may be. Printed are what the plan says (idle share, transfers), and
    how far the results of the steps are from those of one device. The exit code is 1 where one differs, or schedules
    that sum in one order do not give the same bits.
    """
    request_host_devices(8, os.environ)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(splitting_cluster())
        file.flush()
        setting = Setting(0, 0, "", options.mesh)
        setting = replace(setting, cluster=file.name) if options.joined else setting
        for name in options.models:
            text = step_text(name)
            expected = reference(text, name, options.steps)
            for stages, micro_batches, schedule in product(options.stages, options.micro_batches, SCHEDULES):
                own = replace(setting, stages=stages, micro_batches=micro_batches, schedule=schedule)
                yield _pipeline(text, name, own, expected, is_joined=options.joined)


def scans(options: Options) -> Iterator[Tried]:
    """Draw training steps whose layers are loops, cut them in stages at random, and compare with one device.

    How they are drawn: `drawn_scans.py`. The exit code is 1 if a step differs from one device.
    """
    _prepare()
    for seed in options.seeds:
        form, setting = drawn(seed)
        cut = f"{setting.stages} stages of {setting.mesh}, {setting.micro_batches} x {setting.schedule}"
        case = f"seed {seed}: {form}; {cut} {setting.counts}{' remat' if setting.remat else ''}"
        yield tried(case, try_scan, form, setting)


def ranks(options: Options) -> Iterator[Tried]:
    """Draw training steps on ranks of unlike meshes, in stages of every schedule, and compare with one device.

    How they are drawn: `drawn_ranks.py`. They are planned for slow devices on fast links, so that even small tensors
    are split. The exit code is 1 if a step differs from one device; refusals are listed.
    """
    _prepare()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(splitting_cluster())
        file.flush()
        for seed in options.seeds:
            name, setting = drawn_ranks.drawn(seed, file.name)
            cut = f"{setting.mesh}, {setting.micro_batches} x {setting.schedule}"
            case = f"seed {seed}: {name}; {cut}{f' remat {setting.remat}' if setting.remat else ''}"
            yield tried(case, drawn_ranks.try_ranks, name, setting)


def fused(options: Options) -> Iterator[Tried]:
    """Draw training steps with fused projections, store them as blocks, and compare with one device.

    Each is one program under a plan that nobody would choose, and, with `--staged`, in stages too. How they are drawn:
    `drawn_fused.py`. The exit code is 1 if a step differs from one device.
    """
    _prepare()
    for seed in options.seeds:
        form, setting = drawn_fused.drawn(seed)
        mood, mesh = MOODS[seed % len(MOODS)], options.meshes[seed % len(options.meshes)]
        yield tried(f"seed {seed}: {form}; {mood} mesh {mesh}", drawn_fused.try_viewed, form, seed, mood, mesh)
        if options.staged:
            cut = f"{setting.stages} stages of {setting.mesh}, {setting.micro_batches} x {setting.schedule}"
            yield tried(f"seed {seed}: {cut}{' remat' if setting.remat else ''}", drawn_fused.try_staged, form, setting)


def attentions(options: Options) -> Iterator[Tried]:
    """Draw training steps with attention, rewrite it into loops over blocks of keys, and compare with one device.

    Each runs under a plan that nobody would choose. How they are drawn: `drawn_attention.py`. The exit code is 1 if a
    step differs from one device, or its attention stays as it is.
    """
    _prepare()
    for seed in options.seeds:
        form, mood, mesh = (
            drawn_attention.drawn(seed),
            MOODS[seed % len(MOODS)],
            options.meshes[seed % len(options.meshes)],
        )
        case = f"seed {seed}: {form}; {mood} mesh {mesh}"
        yield tried(case, drawn_attention.try_attention, form, seed, mood, mesh)


def rewrites(options: Options) -> Iterator[Tried]:
    """Take training steps under every rewrite, in plans drawn at random, and compare two steps with one device.

    The rewrites, and how plans are drawn: `rewrites.py`. Models are of models.py and, where their libraries are
    installed, of stranger_models.py, in small sizes. The exit code is 1 if a step differs from one device, or ends in
    an error that is no refusal; refusals are listed.
    """
    _prepare()
    for name in options.models or list(STRANGERS):
        try:
            step = small_step(name)
        except ModuleNotFoundError as error:
            say(f"{name} is left out: {error.name} is not installed")
            continue
        for seed, way in product(options.seeds, options.ways):
            yield tried(f"{name} {way} seed {seed}", try_way, step, way, seed)


def _pipeline(text: bytes, name: str, setting: Setting, expected: Reference, *, is_joined: bool) -> dict[str, Any]:
    made = plan(text, name, setting)
    steps = run_pipeline(made, expected.inputs, len(expected.results), is_joined=is_joined)
    found, timeline = difference(made, steps, expected, name), made.simulation.timeline
    return {
        "model": name,
        "stages": setting.stages,
        "micro_batches": setting.micro_batches,
        "schedule": setting.schedule,
        "idle": float(np.mean([timeline.idle(rank) for rank in range(timeline.num_ranks)])),
        "transfers": len(timeline.moves),
        "max_rel": float(found.max_rel),
        "passes": bool(found.passes),
        "bits": digest(steps),
    }


def _other_bits(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    bits: dict[tuple[object, ...], set[str]] = {}
    for one in records:
        case = (one["model"], one["stages"], one["micro_batches"])
        if not one["passes"]:
            yield f"{case}, {one['schedule']}: differs from one device"
        bits.setdefault((*case, SCHEDULES[one["schedule"]].splits_backward), set()).add(one["bits"])
    yield from (f"{case[:3]}: schedules give several answers" for case, found in bits.items() if len(found) > 1)


def _failed(records: Sequence[Tried]) -> Iterator[str]:
    yield from (f"{one.case}: {one.line}" for one in records if not one.passes)


_TRIED: Final = {
    "case": key("case"),
    "": lambda one: "ok" if one.passes else "WRONG",
    "what": key("line"),
}
_STAGED: Final = {
    **{name: key(name) for name in ("model", "stages")},
    "micro-batches": key("micro_batches"),
    "schedule": key("schedule"),
    "idle": key("idle", ".0%"),
    "transfers": key("transfers"),
    "worst relative error": key("max_rel", ".1e"),
    "bits": key("bits"),
}
_PLANS: Final = (
    option("--models", ["mlp", "mlp-dropout", "two-tower", "gpt"], "names of models.py and stranger_models.py"),
    option("--meshes", ["8", "2x4"], "as in rhino-opt --mesh, each of at most 8 devices"),
    option("--seeds", range(3), "draws of a plan"),
    option("--moods", list(MOODS), "see drawn_plans.py"),
)
_MESHES: Final = option("--meshes", list(MESHES), "each seed takes one of them")
_PROGRAMS: Final = (
    option("--seeds", range(100), "programs"),
    option("--size", 12, "steps of a program"),
    _MESHES,
    option("--pad", 1, "store dims of arguments padded to multiples of that"),
)
_BUDGETS: Final = (
    option("--seeds", range(10), "programs"),
    option("--size", 12, "steps of a program"),
    option("--cluster", "cpu8", "for which they are planned"),
)
_PIPELINES: Final = (
    option("--models", list(STAGED), "names of models.py"),
    option("--stages", [2, 4], "numbers of stages"),
    option("--micro-batches", [4, 8], "numbers of micro-batches"),
    option("--mesh", "1", "of a rank"),
    option("--steps", 3, "that are compared"),
    option("--joined", False, "with collectives joined"),
)
_SCANS: Final = (option("--seeds", range(40), "steps and how they are cut"),)
_ORACLE: Final = (option("--seeds", range(1000), "programs"), option("--budgets", False, "under budgets too"))
_WORDS: Final = ("", "what")


def _question(records: Callable[[Options], Iterator[Tried]], options: Sequence[tuple[str, dict[str, Any]]]) -> Question:
    return Question(str(records.__doc__), records, _TRIED, options, _WORDS, _failed)


QUESTIONS: Final = {
    "plans": _question(plans, _PLANS),
    "programs": _question(programs, _PROGRAMS),
    "budgets": _question(budgets, _BUDGETS),
    "forms": _question(forms, (option("--seeds", range(100), "forms"), _MESHES)),
    "windows": _question(windows, (option("--seeds", range(100), "forms"), _MESHES)),
    "oracle": _question(oracles, _ORACLE),
    "scans": _question(scans, _SCANS),
    "ranks": _question(ranks, (option("--seeds", range(40), "steps and their ranks"),)),
    "fused": _question(
        fused,
        (option("--seeds", range(40), "steps"), _MESHES, option("--staged", False, "in stages too")),
    ),
    "attentions": _question(attentions, (option("--seeds", range(40), "steps"), _MESHES)),
    "rewrites": _question(
        rewrites,
        (
            option("--models", [], "names of models.py or stranger_models.py (default all of the latter)"),
            option("--ways", list(WAYS), "see rewrites.py"),
            option("--seeds", range(1), "draws of a plan for each way"),
        ),
    ),
    "pipelines": Question(str(pipelines.__doc__), pipelines, _STAGED, _PIPELINES, ("schedule", "bits"), _other_bits),
}

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTIONS, sys.argv[1:]))
