"""Trip counts against loops that are counted out."""

import itertools
import operator

import pytest
from snippets import function, ops_of, tensor

from rhino.ir.program.trip_count import trip_count

INDEX = tensor((), "i64")
TESTS = {"LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "NE": operator.ne}
MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


def loop(direction, start, bound, step, *, test="%i, %n", add="stablehlo.add %i, %s", carried="%n"):
    """A loop over `%i` and a bound `%n` that it carries."""
    body = f"""
    %start = stablehlo.constant dense<{start}> : {INDEX}
    %bound = stablehlo.constant dense<{bound}> : {INDEX}
    %s = stablehlo.constant dense<{step}> : {INDEX}
    %0:2 = stablehlo.while(%i = %start, %n = %bound) : {INDEX}, {INDEX}
    cond {{
      %p = stablehlo.compare {direction}, {test} : ({INDEX}, {INDEX}) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    }} do {{
      %j = {add} : {INDEX}
      stablehlo.return %j, {carried} : {INDEX}, {INDEX}
    }}"""
    return function(body, {"a": INDEX}, {"0#0": INDEX})


def trips_of(text):
    (found,) = ops_of(text, "stablehlo.while")
    return trip_count(found.opview)


def counted(direction, start, bound, step, most=100):
    for trips in range(most):
        if not TESTS[direction](start + trips * step, bound):
            return trips
    return None


@pytest.mark.parametrize("direction", TESTS)
def test_a_loop_runs_until_its_test_fails(direction):
    for start, bound, step in itertools.product((-3, 0, 4, 5), (-4, 0, 5, 7), (-2, -1, 1, 3)):
        wanted = counted(direction, start, bound, step)
        assert trips_of(loop(direction, start, bound, step)) == wanted, (start, bound, step)
        assert trips_of(loop(MIRRORED[direction], start, bound, step, test="%n, %i")) == wanted


def test_a_step_may_be_taken_away_and_a_bound_come_from_outside():
    assert trips_of(loop("GT", 9, 2, 3, add="stablehlo.subtract %i, %s")) == 3
    assert trips_of(loop("LT", 0, 7, 2, add="stablehlo.add %s, %i")) == 4
    assert trips_of(loop("LT", 0, 7, 2, test="%i, %bound", carried="%j")) == 4


@pytest.mark.parametrize(
    "form",
    [
        {"carried": "%j"},
        {"add": "stablehlo.subtract %s, %i"},
        {"add": "stablehlo.multiply %i, %s"},
        {"test": "%i, %a"},
        {"test": "%i, %i"},
        {"add": "stablehlo.add %i, %a"},
    ],
)
def test_what_is_not_known_is_not_said(form):
    assert trips_of(loop("LT", 0, 7, 2, **form)) is None


def test_a_loop_that_never_ends_has_no_count():
    assert trips_of(loop("LT", 0, 7, 0)) is None
    assert trips_of(loop("NE", 0, 7, 2)) is None
