"""What a call of a parallelized function costs the host, against jax.jit with the same shardings.

    python bench/front_door.py            steps of one array up to hundreds, that do next to nothing
    python bench/front_door.py --gpt      a GPT's training step, tiny
    python bench/front_door.py --stages   the same in two stages, against the executor alone

The two functions take turns, and each begins every other pair, for a busy machine slows whatever runs. A time is from the call to its
return: results are waited for between calls. Printed are the middle of all calls, and the middle of the ratios of pairs. Exits with 1
where a ratio is above the limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rhino.runtime.executor.devices import request_host_devices

request_host_devices(8, os.environ)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import jax  # noqa: E402 - after the devices are asked for
import jax.numpy as jnp  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402
from training import init_state, make_step  # noqa: E402
from zoo import ZOO  # noqa: E402

import rhino  # noqa: E402
from rhino.ir.units import format_seconds  # noqa: E402
from rhino.runtime.executor.executor import Executor  # noqa: E402

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


class Times(NamedTuple):
    """Seconds of a call, ours and what it is compared with, and the middle of their ratios."""

    ours_s: float
    theirs_s: float
    ratio: float


def cases(is_gpt: bool) -> Iterator[Case]:
    """Yields what is measured."""
    if is_gpt:
        model, key = ZOO["gpt"], jax.random.key(0)
        yield Case("gpt", make_step(model), init_state(model, key), model.sample(key), {})
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
    return take_turns(functions, states, (batch, batch), num_calls)


def measure_stages(case: Case, num_calls: int) -> Times:
    """Returns what calls of a step in two stages cost, against dispatching the same list of instructions with nothing around it."""
    ours = rhino.parallelize(case.step, cluster="cpu8", donate_argnums=0, stages=2, mesh="4", micro_batches=4)
    plan = ours.plan(case.state, case.batch)
    devices = {rank.rank: rank.devices for rank in plan.ranks}
    with Executor(plan.facts.step, plan.facts.modules, devices) as executor:

        def dispatched(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            results = executor.run(jax.tree.leaves((state, batch)))
            return results[:-1], results[-1]

        placed = [jax.device_put(jax.tree.map(jnp.copy, (case.state, case.batch)), plan.in_shardings) for _ in range(2)]
        return take_turns((ours, dispatched), [state for state, _ in placed], [batch for _, batch in placed], num_calls)


def take_turns(functions: Sequence[Callable[..., Any]], states: list[Tree], batches: Sequence[Tree], num_calls: int) -> Times:
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
    return Times(statistics.median(times[0]), statistics.median(times[1]), ratio)


def main(argv: list[str]) -> int:
    """Measures and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500, metavar="N", help="pairs of calls (default 500)")
    parser.add_argument("--gpt", action="store_true", help="a GPT's training step")
    parser.add_argument("--stages", action="store_true", help="that in two stages, against the executor alone")
    options = parser.parse_args(argv)
    worst = 0.0
    print(f"| step | parallelized | {'executor' if options.stages else 'jax.jit'} | ratio |\n| --- | ---: | ---: | ---: |")
    for case in cases(options.gpt or options.stages):
        found = (measure_stages if options.stages else measure)(case, options.calls)
        worst = max(worst, found.ratio)
        print(f"| {case.name} | {format_seconds(found.ours_s)} | {format_seconds(found.theirs_s)} | {found.ratio:.3f} |", flush=True)
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
