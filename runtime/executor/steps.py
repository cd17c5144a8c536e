"""Run a program step after step.

Each result that takes over an argument's buffer is that argument of the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import jax

from rhino.runtime.executor.executable import Executable, Host, wait

Fresh = Callable[[int], Mapping[int, Host]]


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """One finished step: its number from 0, its wall time, and its results.

    Results have their stored shapes, and those that are fed back live until the next step starts: `Executable.fetch`
    them before.
    """

    number: int
    time_s: float
    results: tuple[jax.Array, ...]


def run_steps(
    executable: Executable, inputs: Sequence[Host], num_steps: int, fresh: Fresh | None = None
) -> Iterator[StepRun]:
    """Runs `num_steps` steps and yields each when it is finished.

    Arguments that no result takes over keep their value of `inputs`, unless `fresh(step)` gives another.

    Raises:
        RhinoError: RHI-RUN-002 where `inputs` do not match the program, RHI-RUN-005 where a launch fails.
    """
    arguments = [executable.put(index, value) for index, value in enumerate(inputs)]
    for number in range(num_steps):
        start_s = time.perf_counter()
        results = executable.run(arguments)
        wait(results)
        yield StepRun(number, time.perf_counter() - start_s, results)
        if number + 1 < num_steps:
            drawn = fresh(number + 1) if fresh else {}
            arguments = _next(
                executable, arguments, results, [drawn.get(i, value) for i, value in enumerate(inputs)], drawn
            )


def _next(
    executable: Executable,
    old: Sequence[jax.Array],
    results: Sequence[jax.Array],
    inputs: Sequence[Host],
    drawn: Mapping[int, Host],
) -> list[jax.Array]:
    """Returns the arguments of the next step.

    Each is fed back, drawn anew, the old one, or put again if the program consumed it.
    """
    feedback = executable.signature.feedback

    def argument(index: int) -> jax.Array:
        if index in feedback:
            return _feed(executable, index, results[feedback[index]])
        if index in drawn or old[index].is_deleted():
            return executable.put(index, inputs[index])
        return old[index]

    return [argument(index) for index in range(len(old))]


def _feed(executable: Executable, index: int, result: jax.Array) -> jax.Array:
    """`result` as argument `index`: as it is where the layouts agree, which XLA need not grant."""
    if result.sharding.is_equivalent_to(executable.in_shardings[index], result.ndim):
        return result
    return executable.move(index, result)


def typical_time_s(times_s: Sequence[float]) -> float:
    """Returns the median time, the first step left out where there are others: it warms up."""
    return median(times_s[1:] or times_s)
