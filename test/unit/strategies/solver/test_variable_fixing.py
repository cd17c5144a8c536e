"""Variables that have one value in every cheap point, against all points of small problems."""

import itertools

import numpy as np
from scipy import sparse

from rhino.strategies.solver.lp.linear_programs import Point, Rows, solve_rows
from rhino.strategies.solver.lp.variable_fixing import OPEN, fixed_values


def drawn_rows(rng: np.random.Generator, num: int) -> Rows:
    """Returns costs under orders of the variables, and limits on two weighted sums of them."""
    matrix, high = np.zeros((2 * num + 2, num)), np.zeros(2 * num + 2)
    for row in range(2 * num):
        lower, upper = sorted(rng.choice(num, 2, replace=False).tolist())
        matrix[row, lower], matrix[row, upper] = 1.0, -1.0
    weights = rng.uniform(0.1, 1.0, num)
    matrix[-2], matrix[-1] = weights, -weights
    high[-2], high[-1] = 0.6 * weights.sum(), -0.3 * weights.sum()
    cost = rng.integers(-9, 10, num) + rng.uniform(0, 0.5, num)
    return Rows(cost, sparse.csr_matrix(matrix), np.full(len(high), -np.inf), high, num)


def cheap_points(rows: Rows, most_cost: float) -> list[tuple[int, ...]]:
    """Returns every whole point of at most this cost."""
    num = len(rows.cost)
    points = np.array(list(itertools.product((0, 1), repeat=num)))
    legal = (points @ rows.matrix.toarray().T <= rows.high + 1e-9).all(axis=1) & (points @ rows.cost <= most_cost)
    return [tuple(point) for point in points[legal].tolist()]


def test_no_cheap_point_has_a_fixed_variable_otherwise() -> None:
    rng = np.random.default_rng(0)
    fixed = told = 0
    for _ in range(60):
        rows = drawn_rows(rng, 9)
        relaxed = solve_rows(rows, integer=False, step_limit=100)
        if not isinstance(relaxed, Point):
            continue
        for most_cost in (relaxed.bound + 1.0, relaxed.bound + 4.0):
            points = cheap_points(rows, most_cost)
            values = fixed_values(rows, relaxed.duals, most_cost)
            fixed += int((values != OPEN).sum())
            told += sum(len({point[variable] for point in points}) == 1 for variable in range(9))
            assert all(
                value == OPEN or all(point[variable] == value for point in points)
                for variable, value in enumerate(values)
            )
    assert fixed >= told / 3 > 50


def test_any_prices_of_rows_are_right() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        rows = drawn_rows(rng, 8)
        values = fixed_values(rows, rng.uniform(-3, 3, len(rows.high)), 0.0)
        assert all(
            value in (OPEN, point[variable])
            for point in cheap_points(rows, 0.0)
            for variable, value in enumerate(values)
        )
