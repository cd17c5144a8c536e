"""What else was possible, and what it would have added: against enumeration, and against plans with that pin."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import front_part
import jax
import numpy as np
import pytest
from brute_force import brute_force
from jax.sharding import PartitionSpec
from problems import random_problem

import rhino
from rhino.ir.diagnostics import RhinoError
from rhino.passes.planner.why import again, reasons, replanned
from rhino.strategies.sharding import what_if as forced
from rhino.strategies.sharding.what_if import Alternatives, hold
from rhino.strategies.solver.conditional_optimum import HeldChoices
from rhino.strategies.solver.search import Limits
from rhino.strategies.solver.solver import Solver
from rhino.tools import opt
from rhino.tools.plan import run

ARGUMENTS = (jax.eval_shape(front_part.init, jax.random.key(0)), front_part.host_batch(0), jax.random.key(0))


def planned(**options: Any) -> rhino.Plan:
    return rhino.parallelize(front_part.step, **{"cluster": "cpu8", "donate_argnums": 0, **options}).plan(*ARGUMENTS)


@pytest.fixture(scope="module")
def plan() -> rhino.Plan:
    return planned()


@pytest.fixture(scope="module")
def files(plan: rhino.Plan, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The plan's file, and its program's."""
    folder = tmp_path_factory.mktemp("plan")
    plan.save(folder / "plan.json")
    plan.save_program(folder / "step.mlir")
    return str(folder / "plan.json"), str(folder / "step.mlir")


def called(*argv: str) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return run(argv, io.BytesIO(), stdout, stderr), stdout.getvalue(), stderr.getvalue()


@pytest.mark.parametrize("entries", [1 << 18, 30, 1])
@pytest.mark.parametrize("seed", range(40))
def test_alternatives_are_those_of_enumeration(seed: int, entries: int, monkeypatch: pytest.MonkeyPatch):
    """Where tables are narrow they are exact without a search; where they are not, what is said lies on either side."""
    monkeypatch.setattr(forced, "_MOST_ENTRIES", entries)
    problem = random_problem(seed)
    best = brute_force(problem)
    if best is None or not problem.num_nodes:
        return
    for left in (0, forced.MOST_STEPS):
        alternatives = Alternatives(problem, Limits(), best, np.inf, Solver(problem), None, left)
        is_exact = left or not alternatives.reach.excess
        for node in range(problem.num_nodes):
            found = {one.state: one for one in alternatives.of([node])}
            for state in range(len(problem.tables[problem.node_table[node]])):
                expected = brute_force(hold(problem, [node], state))
                if state not in found:  # the choice itself, or none at all
                    assert expected is None or state == best.states[node]
                    continue
                one, room = found[state], 1e-6 * abs(best.cost)
                added = expected.cost - best.cost if expected else np.inf
                assert one.at_least_s <= added + room
                assert one.parts is None or one.parts.step_s >= added - room
                assert one.parts is None or one.parts.compute_s + one.parts.collectives_s == pytest.approx(
                    one.parts.step_s
                )
                if is_exact:
                    assert one.parts is not None
                    assert one.at_least_s == pytest.approx(added, abs=1e-4 * abs(best.cost))


def test_nodes_are_held_together_at_states_that_were_left_out():
    for seed in range(40):
        problem = random_problem(seed)
        best = brute_force(problem)
        if best is None or problem.num_nodes < 3:
            continue
        masks = [tuple({0, state}) for state in best.states.tolist()]
        held = HeldChoices(problem, best.states, 1 << 18, masks)
        assert held.value == pytest.approx(best.cost)
        for nodes in ([0], [0, 2]):
            for state in range(min(len(problem.tables[problem.node_table[node]]) for node in nodes)):
                value, states = held.hold(nodes, state)
                tables = [problem.tables[t] for t in problem.node_table]
                others = [
                    np.where([s in mask or n in nodes for s in range(len(table))], table, np.inf)
                    for n, (mask, table) in enumerate(zip(masks, tables, strict=True))
                ]
                count = len(problem.tables)
                left = replace(
                    problem, tables=(*problem.tables, *others), node_table=count + np.arange(problem.num_nodes)
                )
                expected = brute_force(hold(left, nodes, state))
                assert value == pytest.approx(expected.cost if expected else np.inf)
                assert expected is None or problem.cost(states) == pytest.approx(value)


def test_an_alternative_adds_what_a_pin_adds(plan: rhino.Plan):
    found = again(plan._module(), plan.facts)
    assert found.plan == plan.facts
    (why,) = reasons(replanned(plan._module(), plan.facts), "state.up")
    specs = {"[{}, {}]": PartitionSpec(), '[{"x"}, {}]': PartitionSpec("x"), '[{}, {"x"}]': PartitionSpec(None, "x")}
    assert {why.chosen, *(option.how for option in why.options)} == set(specs)
    for option in why.options:
        other = planned(pins={"up": specs[option.how]}).facts.predicted
        assert option.alternative.parts is not None
        assert option.alternative.parts.step_s == pytest.approx(other.step_s - plan.facts.predicted.step_s, rel=1e-6)
        assert option.alternative.parts.peak_bytes == pytest.approx(
            other.largest_peak_bytes - plan.facts.predicted.largest_peak_bytes, rel=0.25
        )


def test_why_speaks_of_arguments_results_scopes_and_lines(plan: rhino.Plan):
    assert re.search(r"state\['up'\], argument f32\[32,64\]\n  chosen: .* on a device each\n", plan.why("up"))
    assert "nothing else" not in plan.why("up")
    source = Path(front_part.__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if 'batch @ state["up"]' in text)
    text = plan.why(f"front_part.py:{line}")
    assert f"dot_general f32[512,64] at front_part.py:{line}" in text
    assert "(replicate)" in text
    assert "result 2" in plan.why("result:2")
    assert plan.why(plan.facts.results[2].path) == plan.why("result:2")
    assert plan.why("result:0") == plan.why("state.down")  # the next value of an argument
    assert "dot_general" in plan.why("loc:jvp()/dot_general:dot_general")
    with pytest.raises(RhinoError, match=r"(?s)RHI-PIN-002.*matches no tensor.*did you mean"):
        plan.why("stat.upp")


def test_why_not_shows_what_changes_or_why_it_cannot_be(plan: rhino.Plan):
    other = planned(pins={"up": PartitionSpec("x")})
    text = plan.why_not('up=[{"x"}, {}]')
    assert f"step: {plan.diff(other).partition('step: ')[2].partition(chr(10))[0]}" in text
    assert re.search(r"argument state\['up'\]: .* -> .*\[\{\"x\"\}, \{\}\]", text)
    lies = next(one for one in plan.facts.arguments if "up" in one.path).dims
    assert "nothing changes" in plan.why_not("up=[" + ", ".join("{" + ", ".join(axes) + "}" for axes in lies) + "]")
    assert "cannot be" in planned(pins={"up": PartitionSpec("x")}).why_not("up=[{}, {x}]")
    with pytest.raises(RhinoError, match=r"(?s)RHI-PIN-002.*or say mesh"):
        plan.why_not("up=[{}, {z}]")


def test_a_plan_by_itself_has_no_program(plan: rhino.Plan, files: tuple[str, str]):
    loaded = rhino.Plan.load(files[0])
    with pytest.raises(RhinoError, match=r"(?s)RHI-JAX-006.*why"):
        loaded.why("up")
    bound = rhino.parallelize(front_part.step, donate_argnums=0, plan=loaded).plan(*ARGUMENTS)
    assert bound.why("up") == plan.why("up")


def test_the_command_asks_the_program_that_is_given(plan: rhino.Plan, files: tuple[str, str], tmp_path: Path):
    file, module = files
    assert called("explain", file, f"--module={module}", "--why=up") == (0, plan.why("up") + "\n", "")
    assert called("explain", file, f"--module={module}", '--why-not=up=[{"x"}, {}]') == (
        0,
        plan.why_not('up=[{"x"}, {}]') + "\n",
        "",
    )
    assert called("explain", file, "--why=up")[0] == 2
    (tmp_path / "other.mlir").write_text(Path(module).read_text().replace("tanh", "cosine"))
    code, _, errors = called("explain", file, f"--module={tmp_path / 'other.mlir'}", "--why=up")
    assert code == 1
    assert "RHI-PLAN-004" in errors


def test_rhino_opt_writes_such_a_plan(files: tuple[str, str], tmp_path: Path):
    stdout, stderr = io.BytesIO(), io.StringIO()
    words = [files[1], "--auto-shard", "--cluster=v100x8", "--mesh=2x4", f"--plan={tmp_path / 'plan.json'}"]
    assert opt.run(words, io.BytesIO(), stdout, stderr) == 0, stderr.getvalue()
    assert stdout.getvalue() == b""
    facts = rhino.Plan.load(tmp_path / "plan.json")
    assert facts.facts.mesh.axes == (("x", 2), ("y", 4))
    assert [one.path for one in facts.facts.arguments] == ["state['down']", "state['up']", "batch", "key"]
    code, text, errors = called("explain", str(tmp_path / "plan.json"), f"--module={files[1]}", "--why=batch")
    assert (code, errors) == (0, "")
    assert "batch, argument f32[512,32]\n  chosen: [" in text
    assert opt.run([files[1], "--rhino-normalize", "--plan=x"], io.BytesIO(), stdout, stderr) == 2


def test_rows_add_up_to_the_step(plan: rhino.Plan):
    """Every second of the prediction stands at an op or at a collective, or is of launching."""
    facts = plan.facts.sharding
    assert sum(one.compute_s for one in facts.works) == pytest.approx(facts.compute_s)
    assert sum(one.seconds for one in facts.costs) == pytest.approx(facts.communication_s)
    assert sum(one.collectives_s for one in facts.works) <= facts.communication_s * (1 + 1e-9)
    assert facts.compute_s + facts.communication_s <= plan.facts.predicted.step_s * (1 + 1e-9)
    alive = sum(one.num_bytes for one in facts.memory.alive)
    assert (
        alive
        == dict(facts.memory.curve)[facts.memory.peak_time]
        == max(num_bytes for _, num_bytes in facts.memory.curve)
    )
