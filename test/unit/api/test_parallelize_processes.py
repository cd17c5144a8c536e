"""Under jax.distributed process 0 plans for all, and they train as one.

Plan, losses and state are those of one device. In stages each holds some of them, and the losses are those of one
process, bit for bit; when one ends, the other says so and ends.
"""

import socket
from pathlib import Path
from types import SimpleNamespace

import arranged_part
import budget_part
import front_part
import jax
import numpy as np
import pytest
import scanned_part
import scanned_steps
import spread_part
import staged_part
from jobs import launched
from tied_step import tied

from rhino.ir.diagnostics import RhinoError
from rhino.passes.planner.plan_rows import simulation_of
from rhino.runtime.distributed.jax_job import deal_devices, team_of


def test_two_processes_that_plan_differently_say_so(tmp_path: Path):
    assert launched(tmp_path, front_part.__file__, ("2", str(tmp_path)), ("2", str(tmp_path), "up=[{x}, {}]")) != [0, 0]
    for process in range(2):
        before, _, after = (tmp_path / f"log-{process}").read_text().partition("error: ")
        assert after.startswith("[RHI-JAX-008] process 1 has another plan of step than process 0\n  note: to fix: ")
        assert "Traceback" not in before


def test_two_processes_train_as_one_device_does(tmp_path: Path):
    codes = launched(tmp_path, front_part.__file__, *[("2", str(tmp_path))] * 2)
    assert codes == [0, 0], (tmp_path / "log-0").read_text() + (tmp_path / "log-1").read_text()
    state, losses = front_part.init(jax.random.key(0)), []
    for number in range(4):
        state, loss = jax.jit(front_part.step)(state, front_part.host_batch(number), jax.random.key(number))
        losses.append(float(loss))
    outs = [np.load(tmp_path / f"out-{process}.npz") for process in range(2)]
    assert outs[0]["losses"].tolist() == outs[1]["losses"].tolist()
    np.testing.assert_allclose(outs[0]["losses"], losses, rtol=2e-5)
    for out in outs:
        for name in out.files:
            if name not in ("losses", "searches"):
                whole, _, index = name.partition("-")
                np.testing.assert_allclose(out[name], state[whole][eval(index)], rtol=1e-4, atol=1e-5)
    assert (tmp_path / "plan-0.json").read_bytes() == (tmp_path / "plan-1.json").read_bytes()
    assert [int(out["searches"]) for out in outs] == [1, 0]


def test_two_processes_split_host_arrays(tmp_path: Path):
    assert launched(tmp_path, budget_part.__file__, (), ()) == [0, 0]
    _, loss = jax.jit(budget_part.step)(budget_part.WEIGHTS, budget_part.BATCH)
    for said in sorted(tmp_path.glob("log-*")):
        assert float(said.read_text().rpartition("loss ")[2]) == pytest.approx(float(loss))


@pytest.mark.long
def test_two_processes_refuse_a_step_that_is_over_the_budget_of_one(tmp_path: Path):
    assert launched(tmp_path, budget_part.__file__, (), ("100",)) == [0, 0]
    said = [(tmp_path / f"log-{process}").read_text().partition("error: ")[2] for process in range(2)]
    assert said[0] == said[1]
    assert said[0].startswith("[RHI-SOLVE-001] the compiled program of step takes")


@pytest.mark.parametrize(
    ("model", "plans", "end", "words"),
    [
        ("cut", "kept", "killed", "has ended, last heard of "),
        pytest.param(
            "gpt",
            "own",
            "raised",
            "raised RuntimeError: of its own, after 12 steps",
            marks=pytest.mark.long,
        ),
    ],
)
def test_two_processes_train_in_stages_as_one_does(tmp_path: Path, model: str, plans: str, end: str, words: str):
    training, expected, idle = staged_part.Training(model), {}, []
    for mesh in staged_part.MESHES:
        fast = training.planned(mesh)
        plan = fast.plan(jax.eval_shape(training.init, jax.random.key(0)), training.batch(0))
        plan.save(tmp_path / mesh)
        assert plan.facts.execution is not None
        idle.append(simulation_of(plan.facts.execution).timeline)
        left, read = training.train(fast)
        expected[mesh] = {"read": np.array(read), **staged_part.here(left)}
    codes = launched(tmp_path, staged_part.__file__, *[(str(tmp_path), model, plans, end)] * 2)
    said = [(tmp_path / f"log-{process}").read_text() for process in range(2)]
    for mesh, wanted in expected.items():
        outs = [dict(np.load(tmp_path / f"out-{process}-{mesh}.npz")) for process in range(2)]
        assert outs[0].keys() & outs[1].keys() == {"read"}
        assert outs[0].keys() | outs[1].keys() == wanted.keys()
        assert all((array == wanted[name]).all() for out in outs for name, array in out.items())
    for process in range(2):
        lines = (tmp_path / f"logged-{process}").read_text().splitlines()
        assert len(lines) == staged_part.STEPS
        assert all(f"% idle ({idle[0].idle(process):.0%} predicted), memory " in line for line in lines)
        # Both ranks lie in both processes: the losses are those of ranks in one each.
        assert (np.load(tmp_path / f"crossed-{process}.npy") == expected["2"]["read"]).all()
        moved = (tmp_path / f"refused-{process}").read_text()
        assert "error: [RHI-JAX-009] state['" in moved
        assert f"is in process {1 - process}, and the plan has it on rank {1 - process}, in process {process}:" in moved
        opened = set((tmp_path / f"opened-{process}").read_text().splitlines())
        # What both plan themselves is in no file: there, too, the last two jobs have the plan of mesh 2 from one.
        read = expected if plans == "kept" else ("2",)
        of_plans = {f"{mesh}/{name}" for mesh in read for name in ("plan.json", "step.json")}
        # Process 0 alone reads plans, and the other has what is its own of them.
        assert {name for name in opened if name.endswith(".json")} == (of_plans if process == 0 else set())
        assert any("/programs/" in name for name in opened) == (process == 0)
    assert codes == [1 if end == "raised" else -9, 1][::-1]
    told = f"error: [RHI-RUN-007] process 1 on {socket.gethostname()} {words}"
    assert all(told in one for one in said[: 1 if end == "killed" else 2])


@pytest.mark.long
@pytest.mark.parametrize("plan", arranged_part.PLANS)
def test_a_gpt_trains_in_any_arrangement_as_one_device_does(tmp_path: Path, plan: str):
    """With dropout, in one process, in two and in four: ranks lie in one process, in two and in four.

    Two and four processes give the same bits. So does one where a rank has two devices; sums over four are in another
    order where processes share a backend.
    """
    training = staged_part.Training("gpt")
    num_devices, options = arranged_part.PLANS[plan]
    fast = arranged_part.planned(training, cluster=f"cpu{num_devices}", **options)
    fast.plan(jax.eval_shape(training.init, jax.random.key(0)), training.batch(0)).save(tmp_path / plan)
    expected = arranged_part.trained(training, fast)
    state, losses, alone = training.init(jax.random.key(0)), [], jax.jit(training.step)
    for number in range(arranged_part.NUM_STEPS):
        state, seen = alone(state, training.batch(number))
        losses.append(float(seen["loss"]))
    np.testing.assert_allclose(expected["losses"], losses, rtol=1e-6)
    two, four = (arranged(tmp_path, plan, count) for count in (2, 4))
    assert two.keys() == four.keys() == expected.keys()
    for name, part in expected.items():
        assert (two[name] == four[name]).all(), name
        if plan == "2 ranks of 2":
            assert (two[name] == part).all(), name
        np.testing.assert_allclose(two[name], part, rtol=1e-5, atol=1e-6)


def arranged(folder: Path, plan: str, count: int) -> dict[str, np.ndarray]:
    """Returns what so many processes have together; what several have is alike."""
    codes = launched(folder, arranged_part.__file__, *[(str(folder), str(count), plan)] * count)
    assert codes == [0] * count, [(folder / f"log-{one}").read_text() for one in range(count)]
    found = dict[str, np.ndarray]()
    for process in range(count):
        with np.load(folder / f"{plan}-{count}-{process}.npz") as out:
            for name, part in out.items():
                assert (found.setdefault(name, part) == part).all(), name
    return found


@pytest.mark.long
def test_each_process_has_the_rows_of_its_layers(tmp_path: Path):
    codes = launched(tmp_path, scanned_part.__file__, *[(str(tmp_path),)] * 2)
    assert codes == [0, 0], (tmp_path / "log-0").read_text() + (tmp_path / "log-1").read_text()
    step, state, losses = jax.jit(scanned_steps.STEPS["dropped"]), scanned_steps.state(), []
    for _ in range(scanned_part.NUM_STEPS):
        state, (loss, _) = step(state, scanned_steps.batch())
        losses.append(float(loss))
    leaves, seen = jax.tree.leaves(state), dict[str, int]()
    for process in range(2):
        with np.load(tmp_path / f"out-{process}.npz") as out:
            np.testing.assert_allclose(out["losses"], losses, rtol=2e-5)
            assert len(out.files) > 1
            for name in out.files[1:]:
                number, start = map(int, name.split("-"))
                rows = out[name]
                np.testing.assert_allclose(rows, leaves[number][start : start + len(rows)], rtol=2e-3, atol=2e-5)
                seen[f"{number}"] = seen.get(f"{number}", 0) + len(rows)
    assert set(seen.values()) == {scanned_steps.LAYERS}


@pytest.mark.long
@pytest.mark.parametrize("job", spread_part.JOBS)
def test_processes_train_in_ranks_as_one_device_does(tmp_path: Path, job: str):
    """With dropout.

    Shares of 5 and 3, ranks of 4, 2 and 2 devices, stages on two groups, scopes on 8 and 4 devices; ranks that lie in
    two processes, and processes that have parts of two ranks.
    """
    devices, plans = spread_part.JOBS[job]
    step, expected = tied(next(iter(plans.values()))[0])
    alone, losses = jax.jit(step), []
    for number in range(spread_part.NUM_STEPS):
        expected, loss = alone(expected, spread_part.BATCH, np.int32(number))
        losses.append(float(loss))
    for name, (scopes, options) in plans.items():
        fast = spread_part.ready(scopes, **options)
        fast.plan(expected, spread_part.BATCH, np.int32(0)).save(tmp_path / name)
        state, found = spread_part.train(fast)
        np.testing.assert_allclose(found, losses, rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state, expected)
    codes = launched(tmp_path, spread_part.__file__, *[(str(tmp_path), job)] * len(devices))
    assert codes == [0] * len(devices), [(tmp_path / f"log-{one}").read_text() for one in range(len(devices))]
    for name in plans:
        missing = {leaf: np.ones(array.shape, bool) for leaf, array in expected.items()}
        for process in range(len(devices)):
            with np.load(tmp_path / f"{name}-{process}.npz") as out:
                np.testing.assert_allclose(out["losses"], losses, rtol=1e-6)
                for leaf, _, index in (part.partition("-") for part in out.files if part != "losses"):
                    at = eval(index)
                    missing[leaf][at] = False
                    np.testing.assert_allclose(out[f"{leaf}-{index}"], expected[leaf][at], rtol=1e-5, atol=1e-6)
        assert not any(leaf.any() for leaf in missing.values()), name


def test_ranks_are_dealt_to_processes_whole(monkeypatch: pytest.MonkeyPatch):
    there = [SimpleNamespace(id=number, process_index=number // 3) for number in range(6)]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "devices", lambda: there)
    assert [one.id for one in deal_devices((2, 2))] == [0, 1, 3, 4]
    assert [one.id for one in deal_devices((1, 1, 1))] == [0, 1, 3]
    assert [one.id for one in deal_devices((2, 2), ((0, 4), (1, 3)))] == [0, 1, 2, 3, 4]
    assert [one.id for one in deal_devices((2, 2, 2))] == [0, 1, 2, 3, 4, 5]
    ranks = [SimpleNamespace(rank=rank, devices=there[3 + rank : 4 + rank]) for rank in range(2)]
    with pytest.raises(RhinoError, match=r"RHI-RUN-004.*process 0 holds no device of 2 ranks"):
        team_of(ranks)


def test_ranks_are_dealt_to_more_processes_in_equal_parts(monkeypatch: pytest.MonkeyPatch):
    there = [SimpleNamespace(id=number, process_index=number // 2) for number in range(8)]
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    monkeypatch.setattr(jax, "devices", lambda: there)
    assert [one.id for one in deal_devices((2, 2))] == [0, 2, 4, 6]
    assert [one.id for one in deal_devices((2, 4, 2))] == [*range(8)]
    assert [one.id for one in deal_devices((4,))] == [0, 2, 4, 6]
    assert [one.id for one in deal_devices((3, 3))] == [*range(6)]
