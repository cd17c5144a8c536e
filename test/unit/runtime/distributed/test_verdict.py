"""What the processes of a job have told decides who a job ends for: by hand, without processes."""

from dataclasses import replace

import pytest

from rhino.ir.diagnostics import RhinoError
from rhino.passes.sharding.choose_shardings import DoesNotFitError
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.verdict import GRACE_S, Beat, Seen, Verdict, raised_text, verdict

LIMITS = Limits(100, 20, 30)
NOW_S = 1000.0


def seen(number: int, begun: int = 5, *, is_open: bool = True, **beat: object) -> Seen:
    """A process that was heard of now, and moved long ago."""
    found = Beat(begun, is_open)
    return Seen(f"process {number}", {}, NOW_S, NOW_S - 40, beat=replace(found, **beat))  # type: ignore[arg-type]


def found(*processes: Seen, limits: Limits = LIMITS) -> Verdict | None:
    return verdict(processes, 0, NOW_S, limits)


def line(*processes: Seen) -> str:
    one = found(*processes)
    assert one is not None
    return f"{one.id} {one.line}"


def test_who_is_behind_is_the_cause_of_a_stall():
    behind = seen(1, 4, is_open=False, task="at train.py:3 in load")
    assert line(seen(0), behind) == (
        "RHI-RUN-008 no progress for 30 s: process 1 is after 4 steps, at train.py:3 in load; process 0 is in step 4"
    )
    assert line(*map(seen, range(5))).endswith("process 2 is in step 4 and 2 more")


def test_one_that_does_not_go_on_is_seen_where_the_others_wait_outside_of_steps():
    processes = [seen(0, 7, is_open=False, task="at train.py:3 in load"), seen(1, 9, is_open=False)]
    assert line(*processes) == (
        "RHI-RUN-008 no progress for 30 s: process 0 is after 7 steps, at train.py:3 in load;"
        " process 1 is after 9 steps"
    )


def test_a_compile_a_first_step_and_a_pause_are_no_stall():
    assert found(seen(0), seen(1, 4, is_open=False, is_busy=True)) is None
    assert found(seen(0, is_first=True), seen(1)) is None
    assert found(seen(0, is_open=False), seen(1, is_open=False)) is None
    moving = seen(1)
    moving.moved_s = NOW_S - 10
    assert found(seen(0), moving) is None


def test_a_first_step_has_the_limit_of_the_start():
    processes = [seen(0, 1, is_first=True), seen(1, 0, is_open=False)]
    for one in processes:
        one.moved_s = NOW_S - 101
    assert line(*processes).startswith("RHI-RUN-008 no progress for 100 s: process 1 is after 0 steps")


def test_the_first_that_is_lost_is_the_cause():
    processes = [seen(0), seen(1), seen(2)]
    processes[1].lost_s, processes[2].lost_s = NOW_S - 3, NOW_S - 2
    processes[0].raised, processes[0].raised_s = "JaxRuntimeError: closed by peer", NOW_S - 3
    assert line(*processes) == "RHI-RUN-007 process 1 has ended, last heard of in step 4"
    processes[1].lost_s = NOW_S - GRACE_S / 2
    processes[2].lost_s = None
    processes[0].raised, processes[0].moved_s = "", NOW_S
    assert found(*processes) is None, "others may have been lost before"


def test_an_error_of_its_own_comes_before_one_of_a_peer():
    processes = [seen(0), seen(1)]
    processes[0].raised, processes[0].raised_s = "JaxRuntimeError: closed by peer", NOW_S - 3
    processes[1].raised, processes[1].raised_s = "ValueError: mine", NOW_S - 2
    assert line(*processes) == "RHI-RUN-007 process 1 raised ValueError: mine, in step 4"
    processes[0].raised = "ValueError: mine"
    assert line(*processes).startswith("RHI-RUN-007 process 0 and process 1 raised ValueError")


def test_silence_absence_and_leaving_early():
    silent = seen(1)
    silent.heard_s = NOW_S - 21
    assert line(seen(0), silent) == "RHI-RUN-007 process 1 sent no heartbeat for 20 s, last heard of in step 4"
    assert line(seen(0), Seen()) == "RHI-RUN-007 process 1 did not come within 100 s"
    early = seen(1, 3, is_open=False)
    early.left = True
    assert line(seen(0), early) == "RHI-RUN-007 process 1 has ended after 3 steps, and process 0 has begun 5"


def test_other_versions_are_told():
    processes = [seen(0), seen(1)]
    for one, version in zip(processes, ("0.10.2", "0.10.3"), strict=True):
        one.versions = {"jax": version}
    assert line(*processes) == "RHI-RUN-010 process 1 has jax 0.10.3, and process 0 has 0.10.2"


def test_limits_are_given_or_of_the_environment():
    environment = {"RHINO_STALL_LIMIT_S": "7.5", "RHINO_START_LIMIT_S": "9"}
    assert Limits.parse(environment, {"start_limit_s": 11, "stall_limit_s": None}) == Limits(11, 20, 7.5)
    for text in ("soon", "0", "-1", "inf"):
        with pytest.raises(RhinoError, match=r"RHI-RUN-009.*RHINO_STALL_LIMIT_S is"):
            Limits.parse({"RHINO_STALL_LIMIT_S": text}, {})


def test_errors_of_the_process_that_plans_and_of_those_that_are_told_are_alike():
    error = DoesNotFitError("RHI-SOLVE-001", "no choice fits", needed_bytes=4.0)
    assert raised_text(error) == raised_text(RhinoError("RHI-SOLVE-001", "no choice fits"))
    assert raised_text(error) == "[RHI-SOLVE-001] no choice fits"
    assert raised_text(ValueError("mine\nand more")) == "ValueError: mine"
