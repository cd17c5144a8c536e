"""A plan's steps as they are run: arguments and results by leaf, and each step when it has ended."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.blocks import from_view, to_view
from rhino.ir.graph.elements import DTYPES
from rhino.ir.plan.instructions import Feed, Fetch, Layout
from rhino.ir.plan.leaves import leaf_groups, leaf_tensors
from rhino.ir.plan.plan import Plan, Tensor
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.executor.executable import Host
from rhino.runtime.executor.executor import Argument, Executor
from rhino.runtime.executor.inputs import InputRule, draw_inputs, fresh_inputs, read_inputs
from rhino.runtime.executor.signature import Signature, Value, array_dtype
from rhino.runtime.executor.trace import Event, Recorder


@dataclass(frozen=True, slots=True, eq=False)
class RanStep:
    """One finished step: its number, its wall time, and the results that were asked for, as far as they are here."""

    number: int
    time_s: float
    results: Mapping[int, Host]


def signature_of(plan: Plan) -> Signature:
    """Returns the signature of a plan: its arguments and results.

    An argument that nothing reads is an array as well, of which only the shape matters. What lies in pieces is whole.
    """
    assert plan.execution is not None, "it is a plan of programs"
    step = plan.execution.step
    fed = {one.argument: step.slots[one.target].layout for one in step.instructions if isinstance(one, Feed)}
    fetched = {one.result: step.slots[one.source].layout for one in step.instructions if isinstance(one, Fetch)}
    given, made = leaf_tensors(plan.arguments, plan.results)
    names = {text: name for name, text in DTYPES.items()}

    def value(index: int, one: Tensor, layout: Layout | None) -> Value:
        shape = one.shape if layout is None or one.viewed else (*one.shape, *layout.shape[len(one.shape) :])
        dtype = array_dtype(layout.dtype if layout else names.get(one.dtype, one.dtype))
        if dtype is None:
            raise RhinoError(
                "RHI-RUN-002",
                f"{one.path} of the plan is of {one.dtype}, which no array has",
                fix="plan a program of other element types",
            )
        return Value(index, one.path, shape, dtype, shape, shape)

    first_given, first_made = ([group[0] for group in leaf_groups(side)] for side in (plan.arguments, plan.results))
    arguments = tuple(value(i, one, fed.get(first_given[i])) for i, one in enumerate(given))
    results = tuple(value(i, one, fetched.get(first_made[i])) for i, one in enumerate(made))
    return Signature(arguments, results, {i: one.alias for i, one in enumerate(given) if one.alias is not None})


def pieces_of(plan: Plan, leaves: Mapping[int, Host]) -> dict[int, Host]:
    """Returns the arguments that some leaves are, by number: of a leaf that lies in pieces, the rows of each.

    They have the shapes in which they are stored.
    """
    groups, found = leaf_groups(plan.arguments), dict[int, Host]()
    for number, value in leaves.items():
        for piece in groups[number]:
            one = plan.arguments[piece]
            own = value if one.rows is None else value[one.rows[0] : one.rows[1]]
            found[piece] = to_view(own, one.viewed, one.interleaved) if one.viewed else own
    return found


def leaves_of(plan: Plan, results: Mapping[int, Host]) -> dict[int, Host]:
    """Returns the results of a step by leaf, each whole and in its own shape, those of which all is given."""
    own = {
        piece: from_view(result, one.shape, one.interleaved) if (one := plan.results[piece]).viewed else result
        for piece, result in results.items()
    }
    return {
        number: own[group[0]] if len(group) == 1 else np.concatenate([own[piece] for piece in group])
        for number, group in enumerate(leaf_groups(plan.results))
        if own.keys() >= set(group)
    }


def asked_of(plan: Plan, signature: Signature, options: Namespace) -> frozenset[int]:
    """Returns the results that somebody looks at, as the plan has them: all that are compared, else the losses."""
    groups = leaf_groups(plan.results)
    leaves = range(len(groups)) if options.compare else signature.losses
    return frozenset(piece for leaf in leaves for piece in groups[leaf])


@dataclass(frozen=True, slots=True)
class Inputs:
    """The first step's arguments, and what draws those of later steps (None: they keep their value)."""

    values: list[Host]
    fresh: Callable[[int], Mapping[int, Host]] | None

    @staticmethod
    def of(nonnegative: Iterable[int], signature: Signature, options: Namespace) -> Inputs:
        """Returns what the command line asks for; `nonnegative` are arguments that index something."""
        given = read_inputs(Path(options.inputs), signature) if options.inputs else {}
        rule = InputRule(options.seed, options.int_range, frozenset(nonnegative))
        fresh = fresh_inputs(signature, rule, given) if options.fresh_batches else None
        return Inputs(draw_inputs(signature, rule, given), fresh)


def steps_of(
    executor: Executor, plan: Plan, inputs: Inputs, num_steps: int, asked: frozenset[int]
) -> Iterator[RanStep]:
    """Yields each step when it has ended, with the results `asked` for as the plan has them: in pieces."""
    arguments: list[Argument] = [*pieces_of(plan, dict(enumerate(inputs.values))).values()]
    for number in range(num_steps):
        start_s = time.perf_counter()
        results = executor.run(arguments)
        executor.wait()
        time_s = time.perf_counter() - start_s
        here = {i: array for i, array in enumerate(results) if i in asked and array is not None}
        yield RanStep(number, time_s, {i: np.array(array) for i, array in here.items()})
        for index, value in pieces_of(plan, inputs.fresh(number + 1) if inputs.fresh else {}).items():
            arguments[index] = value
        for index, one in enumerate(plan.arguments):
            if one.alias is not None:
                arguments[index] = results[one.alias]


def events_of(recorder: Recorder | None) -> list[Event]:
    """Returns what was recorded, once all of it has ended."""
    if recorder is None:
        return []
    recorder.close()
    return recorder.events()


def limits_of(options: Namespace) -> Limits:
    """Returns how long processes wait for one another."""
    return Limits.parse(os.environ, {"stall_limit_s": options.stall_limit})
