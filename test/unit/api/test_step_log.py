"""Steps that run are told to loggers of their ranks, beside what was predicted; nothing is where nobody listens."""

import gc
import logging
import re
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rhino
from rhino.passes.planner.plan_rows import simulation_of

LINE = re.compile(
    r"step (\d+): (.*?) (m|u|)s \((.*) predicted\), (.*) examples/s"
    r"(?:, (\d+)% idle \((\d+)% predicted\))?, memory (.*) of 2 GiB"
)
STAGED = {"stages": 2, "micro_batches": 2}


def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(lambda w: (jnp.tanh(x @ w[0]) @ w[1]).sum())(w)
    return w - 0.01 * gradient, loss


def watchers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name in ("rhino-step-log", "rhino-trace")}


def run(num_steps: int, **options: Any) -> rhino.Parallelized:
    planned = rhino.parallelize(step, cluster="cpu4", donate_argnums=0, **options)
    w, x = jnp.ones((2, 16, 16)), jnp.ones((32, 16))
    for _ in range(num_steps):
        w, loss = planned(w, x)
    jax.block_until_ready(loss)
    return planned


@pytest.mark.parametrize("options", [{}, STAGED], ids=["one program", "stages"])
def test_each_step_of_each_rank_is_told(options: dict[str, Any], caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, logger="rhino"):
        planned = run(3, **options)
        plan = planned.plan(jnp.ones((2, 16, 16)), jnp.ones((32, 16)))
        num_ranks = len(plan.ranks)
        deadline_s = time.monotonic() + 60
        while sum("step 2: " in one for one in caplog.messages) < num_ranks and time.monotonic() < deadline_s:
            time.sleep(0.01)
    for rank in range(num_ranks):
        found = [one.getMessage() for one in caplog.records if one.name == f"rhino.rank{rank}"]
        matches = [LINE.fullmatch(one) for one in found]
        assert all(matches), found
        assert [int(one[1]) for one in matches if one] == [0, 1, 2]
        for one in matches:
            assert one is not None
            took_s = float(one[2]) * {"": 1, "m": 1e-3, "u": 1e-6}[one[3]]
            assert float(one[5]) == pytest.approx(32 / took_s, rel=0.01)
            if options:
                assert plan.facts.execution is not None
                predicted = simulation_of(plan.facts.execution).timeline.idle(rank)
                assert 0 <= int(one[6]) <= 100
                assert int(one[7]) == round(100 * predicted)
            else:
                assert one[6] is None


def test_nobody_waits_where_nobody_listens(caplog: pytest.LogCaptureFixture):
    before = watchers()
    with caplog.at_level(logging.INFO, logger="rhino"):
        run(2, **STAGED)
    assert watchers() <= before
    assert not [one for one in caplog.records if one.name.startswith("rhino.rank")]


@pytest.mark.parametrize("options", [{}, STAGED], ids=["one program", "stages"])
def test_waiting_threads_end_with_the_program(options: dict[str, Any], caplog: pytest.LogCaptureFixture):
    before = watchers()
    with caplog.at_level(logging.DEBUG, logger="rhino"):
        planned = run(1, **options)
        assert watchers() - before
        del planned
        deadline_s = time.monotonic() + 60
        while watchers() - before and time.monotonic() < deadline_s:
            gc.collect()
            time.sleep(0.01)
    assert watchers() <= before
