"""What a call of a parallelized function costs the host, against jax.jit with the same shardings.

    (no option)   steps of one array up to hundreds, that do next to nothing
    --gpt         a GPT's training step, tiny
    --stages      the same in two stages, against the executor alone

The two functions take turns, and each begins every other pair, for a busy machine slows whatever runs. A time is from
the call to its return: results are waited for between calls. Printed are the middle of all calls, and the middle of the
ratios of pairs. Exits with 1 where a ratio is above the limit.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from models import example, zoo
from report import Options, Question, key, option

import rhino
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executor import Executor

LIMIT: Final = 1.05
NUM_ARRAYS: Final = (1, 10, 50, 300)
_WARM_UP: Final = 20
Tree = Any


class Case(NamedTuple):
    """A step, where it starts, and what it is called."""

    name: str
    step: Callable[[Tree, Tree], tuple[Tree, jax.Array]]
    state: Tree
    batch: Tree
    pins: dict[str, PartitionSpec]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a call, ours and what it is compared with, and the middle of their ratios."""

    step: str
    ours_s: float
    theirs_s: float
    ratio: float


def cases(is_gpt: bool) -> Iterator[Case]:
    """Yields what is measured."""
    if is_gpt:
        model, training, seed = zoo()["gpt"], example("training"), jax.random.key(0)
        yield Case("gpt", training.make_step(model), training.init_state(model, seed), model.sample(seed), {})
        return

    def add_one(state: Tree, x: jax.Array) -> tuple[Tree, jax.Array]:
        return jax.tree.map(lambda w: w + 1.0, state), x.sum()

    for count in NUM_ARRAYS:
        state = {f"w{number}": jnp.ones((8, 8)) for number in range(count)}
        yield Case(f"{count} arrays", add_one, state, jnp.ones((8, 8)), {"state.*": PartitionSpec("x")})


def measure(case: Case, num_calls: int) -> Times:
    """Returns what calls cost, from `num_calls` pairs."""
    ours = rhino.parallelize(case.step, cluster="cpu8", donate_argnums=0, pins=case.pins)
    plan = ours.plan(case.state, case.batch)
    theirs = jax.jit(case.step, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings, donate_argnums=0)
    batch = jax.device_put(case.batch, plan.in_shardings[1])
    functions = (ours, theirs)
    states = [jax.tree.map(jnp.copy, jax.device_put(case.state, plan.in_shardings[0])) for _ in functions]
    return take_turns(case.name, functions, states, (batch, batch), num_calls)


def measure_stages(case: Case, num_calls: int) -> Times:
    """Returns what calls of a step in two stages cost, against dispatching its list of instructions alone."""
    ours = rhino.parallelize(case.step, cluster="cpu8", donate_argnums=0, stages=2, mesh="4", micro_batches=4)
    plan = ours.plan(case.state, case.batch)
    devices = {rank.rank: rank.devices for rank in plan.ranks}
    with Executor(plan.facts.step, plan.facts.modules, devices) as executor:

        def dispatched(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            results = executor.run(jax.tree.leaves((state, batch)))
            return results[:-1], results[-1]

        placed = [jax.device_put(jax.tree.map(jnp.copy, (case.state, case.batch)), plan.in_shardings) for _ in range(2)]
        return take_turns(
            case.name, (ours, dispatched), [state for state, _ in placed], [batch for _, batch in placed], num_calls
        )


def take_turns(
    name: str, functions: Sequence[Callable[..., Any]], states: list[Tree], batches: Sequence[Tree], num_calls: int
) -> Times:
    """Returns what calls of two functions cost, each with a state and a batch of its own."""
    times: tuple[list[float], list[float]] = ([], [])
    for call in range(num_calls + _WARM_UP):
        for which in (call % 2, 1 - call % 2):
            start = time.perf_counter()
            states[which], loss = functions[which](states[which], batches[which])
            seconds = time.perf_counter() - start
            jax.block_until_ready((states[which], loss))
            if call >= _WARM_UP:
                times[which].append(seconds)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    return Times(name, statistics.median(times[0]), statistics.median(times[1]), ratio)


def records(options: Options) -> Iterator[Times]:
    """Yields what calls of each step cost."""
    request_host_devices(8, os.environ)
    for case in cases(options.gpt or options.stages):
        yield (measure_stages if options.stages else measure)(case, options.calls)


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "step": key("step"),
        "parallelized": key("ours_s", "s"),
        "jax.jit, or the executor": key("theirs_s", "s"),
        "ratio": key("ratio", ".3f"),
    },
    (
        option("--calls", 500, "pairs of calls"),
        option("--gpt", False, "a GPT's training step"),
        option("--stages", False, "that in two stages, against the executor alone"),
    ),
    faults=lambda rows: [f"{row.step}: the ratio is above {LIMIT}" for row in rows if row.ratio > LIMIT],
)
