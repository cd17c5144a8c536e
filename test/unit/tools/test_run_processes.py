"""What processes leave of a step is taken once all have left it, and removed."""

from pathlib import Path

import numpy as np

from rhino.tools.plan_steps import RanStep
from rhino.tools.run_processes import Ended, leave, results_file


def test_a_step_is_taken_when_it_has_ended_in_all_processes(tmp_path: Path):
    ended = Ended(tmp_path, 2)

    def run(process: int, number: int, time_s: float) -> None:
        leave(RanStep(number, time_s, {process: np.full(2, number)}), results_file(tmp_path, process, number))

    run(0, 0, 1.0)
    run(0, 1, 1.0)
    assert not list(ended.take())
    run(1, 0, 3.0)
    (first,) = ended.take()
    assert (first.number, first.time_s) == (0, 3.0)
    assert {key: value.tolist() for key, value in first.results.items()} == {0: [0, 0], 1: [0, 0]}
    assert [path.name for path in tmp_path.iterdir()] == [results_file(tmp_path, 0, 1).name]
    run(1, 1, 0.5)
    assert [one.number for one in ended.take()] == [1]
    assert not list(tmp_path.iterdir())
