"""Plans as predicted, and as the compiler of the cluster's platform makes them, without a device."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from statistics import mean, median
from typing import Final

import compiled_frontier
import jax
import others
from experts import CASES, Case, experts, pins
from models import step_text
from others import LEAST, off, there
from report import Options, Question, key, markdown, option, run, say
from scipy.stats import spearmanr

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.units import format_bytes
from rhino.passes.planner.aot import LOCALIZED, SEARCHED, Candidate, Comparer
from rhino.passes.planner.request import MOST_COMPILES, budget_of
from rhino.passes.planner.unstaged_plan import Found
from rhino.runtime.aot.compile import compiler_of

ABOUT: Final = """What `--aot` chooses, against experts' plans, and what is predicted against what is compiled.

Each model on each cluster and mesh is planned as `rhino-opt --auto-shard --aot` plans it; then the plans that experts
write down for the model (experts.py) are completed by the search, and compiled too: all in the localized form, and the
fastest in the annotated one. The model's own lines are at the end.

    plan        searched: without --aot; dp, zero-1, ...: an expert's as --aot knows it; expert NAME: as experts.py does
    predicted   step and peak of a device as the plan foresees them
    compiled    the same of the compiled program: kernels and collectives of its schedule at the cluster's rates, and
                the memory that the compiler assigns
    sent        payload of a device by kind of collective, compiled
    processor   seconds of the compile
    with        the chosen plan's compiled step over the fastest expert's that fits
    without     the same of the search's own plan, in the localized form
    rank        Spearman's correlation of predicted and compiled step, over localized plans
    peak        predicted over compiled, localized plans: least, median and most

A plan that equals one that stands before it is compiled once, and has no row of its own. Models are names of models.py.
A mesh is left out where the cluster has not as many devices.

Exit code: with `--check` 1 if `with` is over 1.00 or `without` over 1.03, the mean of `rank` is under 0.8, the median
of `peak` is outside 0.95 to 1.15 or one is under 0.9, a chosen plan is over its budget, or a model has no plan.
"""

MOST_WITH, MOST_WITHOUT, LEAST_RANK = 1.00, 1.03, 0.8
"""What `--check` asks of steps over the best expert's, and of the mean rank correlation."""

_FEWEST: Final = 3
"""Plans without which there is no rank correlation."""

_EXPERT: Final = "expert "


@dataclass(frozen=True, slots=True)
class Row:
    """A plan in a form on a cluster and a mesh: predicted and compiled step, peak, and bytes sent by kind.

    Without a plan, or a compile, `why` says why not.
    """

    model: str
    cluster: str
    mesh: str
    budget_bytes: int
    plan: str = ""
    form: str = ""
    predicted_s: float | None = None
    predicted_bytes: int | None = None
    compiled_s: float | None = None
    compiled_bytes: int | None = None
    sent: Mapping[str, int] = field(default_factory=dict)
    processor_s: float | None = None
    is_chosen: bool = False
    why: str = ""

    @property
    def case(self) -> tuple[str, str, str]:
        """The model, cluster and mesh."""
        return self.model, self.cluster, self.mesh

    @property
    def fits(self) -> bool:
        """Says whether it is compiled, and within the budget."""
        return self.compiled_bytes is not None and self.compiled_bytes <= self.budget_bytes

    @property
    def peak_ratio(self) -> float | None:
        """Predicted over compiled peak."""
        return self.predicted_bytes / self.compiled_bytes if self.predicted_bytes and self.compiled_bytes else None


# Measurements


@dataclass(frozen=True, slots=True)
class Asked:
    """What to compare: a model on a cluster and a mesh, in so many compiles by --aot, with these experts (all)."""

    model: str
    cluster: str
    mesh: str
    compiles: int
    experts: Sequence[str]

    def row(self, candidate: Candidate, *, is_chosen: bool) -> Row:
        """Returns the row of a plan that was compiled."""
        predicted, step, compiled = candidate.found.plan.predicted, candidate.step, candidate.compiled
        sent: dict[str, int] = {}
        for one in step.collectives if step else ():
            sent[one.kind] = sent.get(one.kind, 0) + one.count.num_bytes
        return Row(
            self.model,
            self.cluster,
            self.mesh,
            budget_of(self.cluster),
            candidate.name,
            candidate.form,
            predicted.step_s,
            predicted.peak_bytes[0],
            None if step is None else step.step_s,
            None if compiled is None else compiled.peak_bytes,
            sent,
            None if compiled is None else compiled.processor_s,
            is_chosen,
            candidate.why,
        )

    def comparer(self, text: bytes) -> Comparer:
        """Returns what compares plans of the model, whose step is `text`."""
        cluster = load_cluster(self.cluster)
        return Comparer(
            read=lambda: read_module(text, self.model, make_context()),
            name=self.model,
            options={"cluster": self.cluster, "mesh": self.mesh},
            cluster=cluster,
            budget_bytes=float(budget_of(self.cluster)),
            compiler_for=functools.partial(compiler_of, cluster),
            most=self.compiles,
            on_compile=lambda what: say(f"  {self.model} on {self.cluster} {self.mesh}: {what}"),
        )

    def rows(self) -> Iterator[Row]:
        """Yields the rows of all plans, in the order in which they were compiled."""
        text = step_text(self.model)
        comparer = self.comparer(text)
        try:
            judged = comparer.run()
            if judged.missing:
                yield self.refused(judged.missing)
                return
            best: Candidate | None = judged.best
        except RhinoError as error:
            best = None
            yield self.refused(f"{error.id}: {error.what}")
        case = case_of(self.model)
        if case and comparer.candidates:
            self.add_experts(comparer, case, text)
        yield from (self.row(one, is_chosen=one is best) for one in comparer.candidates)

    def refused(self, why: str) -> Row:
        """Returns the row of a model without a plan."""
        return Row(self.model, self.cluster, self.mesh, budget_of(self.cluster), why=why)

    def add_experts(self, comparer: Comparer, case: Case, text: bytes) -> None:
        """Compiles the plans of the model's experts: all in the first form, the fastest in the others."""
        mesh = parse_mesh(self.mesh)
        module = read_module(text, self.model, make_context())
        made: list[tuple[str, Found, Candidate]] = []
        with tempfile.TemporaryDirectory() as folder:
            for roles in experts(case, len(mesh.axes)):
                words = " ".join(roles if len(set(roles)) > 1 else roles[:1])
                if self.experts and words not in self.experts:
                    continue
                file = Path(folder) / "constraints.toml"
                file.write_text(pins(case, module, mesh, roles), encoding="utf-8")
                try:
                    found = comparer.roomy({"constraints": str(file)}, None)
                except RhinoError as error:
                    say(f"  {self.model} on {self.cluster} {self.mesh}, {words}: {error.id}")
                    continue
                comparer.most = len(comparer.candidates) + 1
                candidate = comparer.add(_EXPERT + words, comparer.forms[0], found)
                if candidate is not None and candidate.compiled is not None:
                    made.append((words, found, candidate))
        fitting = [one for one in made if one[2].peak_bytes <= comparer.budget_bytes]
        for words, found, _ in sorted(fitting or made, key=lambda one: one[2].step_s)[:1]:
            for form in comparer.forms[1:]:
                comparer.most = len(comparer.candidates) + 1
                comparer.add(_EXPERT + words, form, found)


def case_of(model: str) -> Case | None:
    """Returns what experts say of a model of models.py, None where there is nothing."""
    return next((case for name, case in CASES.items() if model.startswith(f"{name}-")), None)


def records(options: Options) -> Iterator[Row]:
    """Yields the rows of all models, clusters and meshes."""
    if options.read:
        yield from (row for file in options.read for row in read_rows(Path(file)))
        return
    jax.config.update("jax_platforms", "cpu")  # models are traced, and nothing runs
    clusters = options.clusters or ["v5e-8" if there("v5e-8") else "cpu8"]
    for cluster in clusters:
        count = load_cluster(cluster).num_devices
        for mesh in options.meshes:
            for model in options.models if parse_mesh(mesh).num_devices == count else ():
                asked = Asked(model, cluster, mesh, options.compiles, options.experts)
                try:
                    yield from asked.rows()
                except RhinoError as error:
                    yield asked.refused(f"{error.id}: {error.what}")


def read_rows(file: Path) -> list[Row]:
    """Returns the rows of a file that `--json` wrote."""
    return [Row(**one) for one in json.loads(file.read_text(encoding="utf-8"))["records"]]


# What the rows come to


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the rows of one model on a cluster and a mesh say; None where they do not."""

    case: tuple[str, str, str]
    num: int
    chosen: Row | None
    best_expert: Row | None
    searched: Row | None
    rank: float | None
    peaks: tuple[float, ...]

    @property
    def with_aot(self) -> float | None:
        """The chosen plan's step over the best expert's."""
        return _over(self.chosen, self.best_expert)

    @property
    def without_aot(self) -> float | None:
        """The step of the search's own plan over the best expert's."""
        return _over(self.searched, self.best_expert)


def _over(ours: Row | None, expert: Row | None) -> float | None:
    return ours.compiled_s / expert.compiled_s if ours and expert and ours.compiled_s and expert.compiled_s else None


def outcomes(rows: Sequence[Row]) -> Iterator[Outcome]:
    """Yields what the rows say, one for each model, cluster and mesh."""
    for case in dict.fromkeys(row.case for row in rows):
        own = [row for row in rows if row.case == case and row.compiled_s is not None]
        experts_ = [row for row in own if row.plan != SEARCHED and row.fits]
        first = [row for row in own if row.form == LOCALIZED]
        yield Outcome(
            case,
            len(own),
            next((row for row in own if row.is_chosen), None),
            min(experts_, key=lambda row: row.compiled_s or 0.0, default=None),
            next((row for row in own if row.plan == SEARCHED), None),
            rank_correlation([(row.predicted_s, row.compiled_s) for row in first]),
            tuple(row.peak_ratio for row in first if row.peak_ratio is not None),
        )


def rank_correlation(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """Returns Spearman's correlation of pairs; None of fewer than three, or where one side is equal throughout."""
    if len(pairs) < _FEWEST:
        return None
    found = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    return None if isnan(found) else found


def faults(rows: Sequence[Row]) -> Iterator[str]:
    """Yields what is not as it should be."""
    yield from (f"{' '.join(row.case)}: {row.why}" for row in rows if row.why and not row.plan)
    made = list(outcomes(rows))
    for one in made:
        where = " ".join(one.case)
        if one.chosen and not one.chosen.fits:
            yield f"{where}: the chosen plan is over its budget"
        for ratio, most, what in ((one.with_aot, MOST_WITH, "with"), (one.without_aot, MOST_WITHOUT, "without")):
            if ratio is not None and ratio > most and one.best_expert:
                yield f"{where}: {ratio:.3f} of the step of {one.best_expert.plan} {what} --aot"
    ranks = [one.rank for one in made if one.rank is not None]
    if ranks and mean(ranks) < LEAST_RANK:
        yield f"rank correlation in the mean {mean(ranks):.2f}"
    peaks = [ratio for one in made for ratio in one.peaks]
    yield from off(peaks) if peaks else ()


def summary(rows: Sequence[Row]) -> str:
    """Returns a line for each model, cluster and mesh, and what all of them come to."""
    head = ("model", "cluster", "mesh", "plans", "chosen", "best expert", "with", "without", "rank", "peak")
    made = list(outcomes(rows))
    lines = markdown(head, map(_cells, made), {"model", "cluster", "mesh", "chosen", "best expert", "peak"})
    ranks = [one.rank for one in made if one.rank is not None]
    peaks = [ratio for one in made for ratio in one.peaks]
    ratios = {
        "with": [one.with_aot for one in made if one.with_aot is not None],
        "without": [one.without_aot for one in made if one.without_aot is not None],
    }
    ends = [
        f"{name} --aot / best expert: mean {mean(all_):.3f}, most {max(all_):.3f}, of {len(all_)}"
        for name, all_ in ratios.items()
        if all_
    ]
    if ranks:
        ends.append(f"rank correlation: mean {mean(ranks):.2f}, least {min(ranks):.2f}")
    if peaks:
        low = sum(ratio < LEAST for ratio in peaks)
        ends.append(
            f"predicted / compiled peak of {len(peaks)} localized plans: median {median(peaks):.3f}, "
            f"{min(peaks):.3f} to {max(peaks):.3f}; {low} are under {LEAST}"
        )
    return "\n".join([*lines, "", *ends])


def _cells(one: Outcome) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    def plan(row: Row | None) -> str:
        return f"{row.plan}, {row.form}" if row else "none"

    peaks = one.peaks
    peak = f"{min(peaks):.2f} {median(peaks):.2f} {max(peaks):.2f}" if peaks else ""
    figures = (number(one.with_aot, ".3f"), number(one.without_aot, ".3f"), number(one.rank, ".2f"))
    return [*one.case, str(one.num), plan(one.chosen), plan(one.best_expert), *figures, peak]


def _sent(row: Row) -> str:
    return ", ".join(f"{kind} {format_bytes(num_bytes)}" for kind, num_bytes in sorted(row.sent.items()))


def _fits(row: Row) -> str:
    return "" if row.compiled_bytes is None else "yes" if row.fits else "no"


MODELS: Final = Question(
    ABOUT,
    records,
    {
        "model": key("model"),
        "cluster": key("cluster"),
        "mesh": key("mesh"),
        "plan": lambda row: f"{row.plan} (chosen)" if row.is_chosen else row.plan,
        "form": key("form"),
        "predicted": key("predicted_s", "s"),
        "compiled": key("compiled_s", "s"),
        "predicted peak": key("predicted_bytes", "bytes"),
        "compiled peak": key("compiled_bytes", "bytes"),
        "fits": _fits,
        "sent": _sent,
        "processor": key("processor_s", "s"),
        "why not": lambda row: row.why.partition("\n")[0],
    },
    (
        option("--models", ["gpt-real", "moe-real", "t5-real"], "names of models.py"),
        option("--clusters", [], "which clusters (default v5e-8 where libtpu is installed, else cpu8)"),
        option("--meshes", ["8"], "which meshes, of those that have a cluster's number of devices"),
        option("--compiles", MOST_COMPILES, "the most compiles of --aot; experts' come on top"),
        option("--experts", [], "which of experts.py's plans, as stderr names them (default all)"),
        option("--read", [], "files that --json wrote: what they hold is printed, nothing is measured"),
        option("--check", False, "exit with 1 where something is not as it should be"),
    ),
    ("cluster", "mesh", "plan", "form", "fits", "sent", "why not"),
    faults,
    summary=summary,
)

QUESTIONS: Final = {"models": MODELS, "others": others.QUESTION, "frontier": compiled_frontier.QUESTION}

if __name__ == "__main__":
    words = sys.argv[1:]
    is_named = bool(words) and words[0] in (*QUESTIONS, "-h", "--help")
    sys.exit(run(__doc__, QUESTIONS, words if is_named else ["models", *words]))
