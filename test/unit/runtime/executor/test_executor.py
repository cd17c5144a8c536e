"""A step on several ranks gives what one device gives, takes no bad argument, and says what went wrong."""

import dataclasses
import gc
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest
import sleep_op
from jax._src import compilation_cache
from jax._src.lru_cache import LRUCache
from pipelined_mlp import HIDDEN, Pipelined, by_hand, pipelined

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instructions import Feed, Fetch, Free, Layout, Run, Slot, Step, StepProgram, Task, Transfer
from rhino.ir.plan.step_memory import live_slots, memory_of
from rhino.runtime.distributed.progress import StageProgress
from rhino.runtime.distributed.tcp_transport import StreamTransport
from rhino.runtime.executor import compile_cache
from rhino.runtime.executor.compile_cache import CompileCache
from rhino.runtime.executor.executor import Executor, devices_of_ranks
from rhino.runtime.executor.trace import MEASURED, SIMULATED, Recorder, chrome_trace
from rhino.runtime.executor.transport import SocketTransport, Transport, joined_address, wire_uid
from rhino.strategies.pipeline.schedules import SCHEDULES

CACHE = CompileCache()


@pytest.fixture
def persistent_cache(tmp_path: Path) -> Iterator[Path]:
    """JAX's persistent cache in a folder of the test's own, which keeps whatever is compiled."""
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
    compilation_cache.reset_cache()


TRANSPORTS = (SocketTransport, StreamTransport)


def mlp(num_stages: int = 2, num_micro_batches: int = 4, num_devices: int = 1) -> Pipelined:
    return pipelined(num_stages, num_micro_batches, num_devices)


def executor(one: Pipelined, **options) -> Executor:
    return Executor(one.step, one.modules, devices_of_ranks(one.step, jax.devices()), cache=CACHE, **options)


def train(one: Pipelined, run: Callable, num_steps: int = 3) -> tuple[list[float], list[np.ndarray]]:
    arguments, losses = list(one.arguments), []
    for _ in range(num_steps):
        results = run(arguments)
        losses.append(float(results[0]))
        arguments[: one.num_stages] = results[1:]
    return losses, [np.asarray(array) for array in arguments[: one.num_stages]]


def raises(id: str, what: str = "") -> pytest.RaisesExc[RhinoError]:
    return pytest.raises(RhinoError, match=rf"(?s)\[{id}\] .*{what}")


class Board:
    """What processes say to each other, for several in one."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.changed = threading.Condition()

    def publish(self, key: str, value: str) -> None:
        with self.changed:
            self.said[key] = value
            self.changed.notify_all()

    def lookup(self, key: str) -> str:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.said, 10)
            return self.said[key]


class FakeJob:
    def __init__(self, board: Board, process: int, host: str = "127.0.0.1") -> None:
        self.process, self.publish, self.lookup, self.host = process, board.publish, board.lookup, host
        self.begin_step = itertools.count().__next__

    def addresses(self, count: int) -> list[str]:
        return [joined_address(self.host, 0)] * count

    def await_verdict(self) -> None:
        pass


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


class TestStep:
    @pytest.mark.parametrize("shape", [(2, 4, 1), (4, 8, 1), (2, 4, 2), (3, 1, 2)])
    def test_training_is_that_of_one_device(self, shape: tuple[int, int, int]):
        one = mlp(*shape)
        losses, weights = by_hand(one, 3)
        with executor(one) as run:
            found = train(one, run.run)
        np.testing.assert_allclose(found[0], losses, rtol=1e-5)
        for got, expected in zip(found[1], weights, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("num_devices", [1, 2])
    def test_all_schedules_agree_to_the_last_bit(self, num_devices: int):
        found = []
        for name, schedule in SCHEDULES.items():
            one = pipelined(4, 6, num_devices, name, schedule.stages_per_rank)
            with executor(one) as run:
                found.append(train(one, run.run))
        for losses, weights in found[1:]:
            assert losses == found[0][0]
            assert all((a == b).all() for a, b in zip(weights, found[0][1], strict=True))

    def test_state_is_taken_over_and_nothing_is_left(self):
        one = mlp()
        with executor(one) as run:
            arguments = run.run(one.arguments)[1:] + one.arguments[2:]
            run.wait()
            before = len(jax.live_arrays())
            for _ in range(3):
                old = arguments[:2]
                arguments[:2] = run.run(arguments)[1:]
                run.wait()
                assert all(array.is_deleted() for array in old)
            assert len(jax.live_arrays()) <= before

    def test_an_argument_that_lies_right_is_used_as_it_is(self):
        one = mlp()
        with executor(one) as run:
            results = run.run(one.arguments)
            pointer = results[1].unsafe_buffer_pointer()
            assert run.run([*results[1:], *one.arguments[2:]])[1].unsafe_buffer_pointer() == pointer

    def test_an_argument_that_lies_elsewhere_is_placed_and_kept(self):
        one = mlp()
        with executor(one) as run:
            elsewhere = [jax.device_put(array, jax.devices()[7]) for array in one.arguments]
            losses, _ = by_hand(one, 1)
            np.testing.assert_allclose(float(run.run(elsewhere)[0]), losses[0], rtol=1e-5)
            assert not any(array.is_deleted() for array in elsewhere)

    @pytest.mark.parametrize(
        ("number", "value", "what"),
        [
            (
                1,
                np.zeros((HIDDEN, 3), np.float32),
                r"argument 1 of the step: got float32\[8, 3\], expected float32\[8, 8\]",
            ),
            (2, np.zeros((4, 4, HIDDEN)), "argument 2 of the step: got float64"),
            (0, None, "argument 0 of the step is missing"),
        ],
    )
    def test_a_bad_argument_is_refused_and_the_next_step_runs(self, number: int, value: np.ndarray | None, what: str):
        one = mlp()
        with executor(one) as run:
            arguments: list = list(one.arguments)
            arguments[number] = value
            with raises("RHI-RUN-002", what):
                run.run(arguments)
            assert train(one, run.run)[0] == pytest.approx(by_hand(one, 3)[0], rel=1e-5)

    def test_a_donated_argument_cannot_be_given_again(self):
        one = mlp()
        with executor(one) as run:
            arguments = [*run.run(one.arguments)[1:], *one.arguments[2:]]
            run.run(arguments)
            with raises("RHI-RUN-002", "argument 0 of the step was deleted or donated"):
                run.run(arguments)

    def test_one_array_for_two_arguments(self):
        one = mlp()
        weight = jax.device_put(one.arguments[0], jax.devices()[0])
        with executor(one) as run:
            same = float(run.run([weight, weight, *one.arguments[2:]])[0])
        with executor(one) as run:
            assert float(run.run([one.arguments[0], one.arguments[0], *one.arguments[2:]])[0]) == same

    def test_a_step_that_is_not_proven_is_refused(self):
        one = mlp()
        cut = tuple(item for item in one.step.instructions if not isinstance(item, Transfer))
        with raises("RHI-STEP-002"):
            Executor(
                dataclasses.replace(one.step, instructions=cut), one.modules, devices_of_ranks(one.step, jax.devices())
            )

    def test_ranks_and_devices(self):
        one = mlp()
        with raises("RHI-RUN-004", "rank 0 has 2 devices"):
            Executor(one.step, one.modules, {0: jax.devices()[:2], 1: jax.devices()[2:4]})
        with raises("RHI-RUN-004", "need 2 devices, not 1"):
            devices_of_ranks(one.step, jax.devices()[:1])
        placed, devices = dataclasses.replace(mlp(num_devices=2).step, devices=((0, 5), (4, 1))), jax.devices()
        assert devices_of_ranks(placed, devices) == {0: (devices[0], devices[5]), 1: (devices[4], devices[1])}
        assert devices_of_ranks(placed, devices[:2], (1,)) == {1: (devices[1], devices[0])}
        with raises("RHI-RUN-004", "need 6 devices, not 5"):
            devices_of_ranks(placed, devices[:5])
        with raises("RHI-RUN-004", "no devices for"):
            Executor(one.step, one.modules, {0: jax.devices()[:1]}, cache=CACHE)


class Census:
    """Counts, after each program and transfer, the activations that each rank holds, in place of a recorder."""

    def __init__(self, layout: Layout) -> None:
        self.shape = layout.shape
        self.counts: list[tuple[int, list[int]]] = []

    def attach(self, step, instructions) -> None:
        self.num_ranks = step.num_ranks

    def wrap(self, place: int, action: Callable, number: Callable, started: Callable) -> Callable:
        def counted() -> None:
            action()
            held = [
                next(iter(array.devices())).id
                for array in jax.live_arrays()
                if array.shape == self.shape and not array.is_deleted()
            ]
            self.counts.append((place, [held.count(rank) for rank in range(self.num_ranks)]))

        return counted


class TestMemory:
    @pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
    def test_what_is_held_is_what_is_predicted(self, schedule: str):
        one = pipelined(4, 6, 1, schedule)
        layout = next(program for program in one.step.programs if program.name == "forward").outputs[0]
        census = Census(layout)
        gc.collect()
        assert not [array for array in jax.live_arrays() if array.shape == layout.shape]
        with executor(one, recorder=census) as run:
            run.run(one.arguments)
        assert len(census.counts) == sum(isinstance(item, Run | Transfer) for item in one.step.instructions)
        for place, held in census.counts:
            slots = [
                [slot for slot in live_slots(one.step, place, rank) if one.step.slots[slot].layout == layout]
                for rank in range(4)
            ]
            assert held == [len(of_rank) for of_rank in slots]

    @pytest.mark.parametrize(("schedule", "most"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [6, 6, 6, 1])])
    def test_micro_batches_at_a_time_are_those_predicted(self, schedule: str, most: list[int]):
        one, recorder = pipelined(4, 6, 1, schedule), Recorder()
        with executor(one, recorder=recorder) as run:
            run.run(one.arguments)
        recorder.close()
        spans = recorder.timeline(0).spans
        for rank, expected in enumerate(memory_of(one.step)):
            # A rank runs in order, so places say which micro-batches are there together; times on a busy machine can
            # have no length.
            tasks = [span.task.micro_batch for span in spans if span.rank == rank and span.task.micro_batch is not None]
            first = [tasks.index(i) for i in range(6)]
            last = [len(tasks) - 1 - tasks[::-1].index(i) for i in range(6)]
            measured = max(sum(a <= start <= b for a, b in zip(first, last, strict=True)) for start in first)
            assert measured == expected.peak_micro_batches == most[rank]


class TestPrograms:
    def test_a_module_of_other_types(self):
        one = mlp()
        with raises(
            "RHI-RUN-006",
            "program forward-first and its module forward-first.mlir disagree: the module has 2 arguments",
        ):
            executor(dataclasses.replace(one, modules={**one.modules, "forward-first.mlir": one.modules["apply.mlir"]}))

    def test_a_module_of_another_sharding(self):
        one = mlp(num_devices=2)
        text = one.modules["last.mlir"].replace('[{"x"}, {}]', "[{}, {}]", 1)
        with raises("RHI-RUN-006", "argument 1 .*is compiled for"):
            executor(dataclasses.replace(one, modules={**one.modules, "last.mlir": text}))

    def test_a_module_for_another_mesh(self):
        one = mlp(num_devices=2)
        with raises("RHI-RUN-006", "the module is for mesh x=1, the step for mesh x=2"):
            executor(dataclasses.replace(one, modules={**one.modules, "last.mlir": mlp().modules["last.mlir"]}))

    def test_a_module_that_is_not_there(self):
        one = mlp()
        with raises("RHI-RUN-006", "program apply is of module apply.mlir, which is not there"):
            executor(
                dataclasses.replace(
                    one, modules={name: text for name, text in one.modules.items() if name != "apply.mlir"}
                )
            )

    def test_equal_programs_compile_once(self):
        one, cache = mlp(4), CompileCache()
        with Executor(one.step, one.modules, devices_of_ranks(one.step, jax.devices()), cache=cache):
            # again: starts, forwards, backwards, applies
            assert (cache.num_compiled, cache.num_loaded) == (
                8,
                2 + 1 + 1 + 3,
            )
        with Executor(one.step, one.modules, devices_of_ranks(one.step, jax.devices()), cache=cache):
            assert cache.num_compiled == 8

    def test_the_persistent_cache_keeps_them(self, persistent_cache, caplog):
        one = mlp(2, 4, 2)
        found = []
        with caplog.at_level("INFO", logger="rhino"):
            for broken in (False, False, True):
                if broken:
                    for path in persistent_cache.glob("*-cache"):
                        path.write_bytes(path.read_bytes()[:-1])
                cache = CompileCache()
                with Executor(one.step, one.modules, devices_of_ranks(one.step, jax.devices()), cache=cache) as run:
                    found.append((cache.num_compiled, cache.num_stored, train(one, run.run)[0]))
        assert [counts for *counts, _ in found] == [[6, 0], [0, 6], [6, 0]]
        assert found[0][2] == found[1][2] == found[2][2]
        assert f"0 compiled, 6 from the compilation cache {persistent_cache}" in caplog.text
        assert caplog.text.count("cannot be read") == 6

    def test_another_compiler_is_told(self, persistent_cache, caplog, monkeypatch):
        one = mlp(2, 4, 2)
        counts = []
        for version in ("0.0.1", compile_cache.jaxlib_version):
            monkeypatch.setattr(compile_cache, "jaxlib_version", version)
            cache = CompileCache()
            with caplog.at_level("INFO", logger="rhino"):
                Executor(one.step, one.modules, devices_of_ranks(one.step, jax.devices()), cache=cache).close()
            counts.append(cache.num_compiled)
        assert counts == [6, 6]
        assert caplog.text.count("it was cached by jaxlib 0.0.1, cpu, this is jaxlib") == 6

    def test_a_cache_that_cannot_be_written_costs_a_warning(self, persistent_cache, caplog, monkeypatch):
        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(LRUCache, "put", refuse)
        one = mlp(2, 4, 2)
        Executor(one.step, one.modules, devices_of_ranks(one.step, jax.devices()), cache=CompileCache()).close()
        assert caplog.text.count("No space left on device") == 6


class TestTransports:
    def test_numbers_on_the_wire(self):
        assert wire_uid(0, 0, 5) == 5
        assert wire_uid(3, 2, 5) == (3 << 36) + (2 << 12) + 5
        assert wire_uid((1 << 27) - 1, (1 << 24) - 1, (1 << 12) - 1) == (1 << 63) - 1

    @pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_between_two_sets_of_ranks(self, transport: Callable[..., Transport], host: str):
        if ":" in host and not has_ipv6():
            pytest.skip("this machine has no IPv6")
        # Ranks of several devices need a process for each set: a CPU client launches one such program at a time.
        one = mlp(4)
        devices = devices_of_ranks(one.step, jax.devices())
        with executor(one) as run:
            expected = train(one, run.run)
        board, found = Board(), {}

        def half(process: int) -> None:
            ours = (0, 1) if process == 0 else (2, 3)
            link = transport(FakeJob(board, process, host))
            try:
                # Two executors share the connections.
                for _ in range(2):
                    own = {rank: devices[rank] for rank in ours}
                    with Executor(one.step, one.modules, own, link, ((0,), (0,), (1,), (1,)), cache=CACHE) as run:
                        arguments: list = list(one.arguments)
                        losses = []
                        for _ in range(3):
                            results = run.run(arguments)
                            losses.append(results[0] and float(results[0]))
                            arguments[:4] = results[1:]
                            assert [result is None for result in results[1:]] == [rank not in ours for rank in range(4)]
                        run.wait()
                        found[process] = losses, {rank: np.asarray(arguments[rank]) for rank in ours}
                board.publish(f"done/{process}", "")
                board.lookup(f"done/{1 - process}")
            finally:
                link.close()

        threads = [threading.Thread(target=half, args=(process,)) for process in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found[1][0] == expected[0]
        for rank in range(4):
            assert (found[rank // 2][1][rank] == expected[1][rank]).all()

    def test_a_transport_that_fails(self):
        class Broken:
            process, waits = 0, True

            def next_step(self):
                return 0

            def sender(self, uid, process):
                return lambda step, parts: None

            def receiver(self, uid, process, kinds):
                def receive(step):
                    raise ConnectionError("the line is dead")

                return receive

            def explain(self):
                self.explained = True

        one, link = mlp(3), Broken()
        own = {0: jax.devices()[:1], 2: jax.devices()[2:3]}
        with raises("RHI-RUN-004", "the step has 3 ranks, and the processes of 2 are given"):
            Executor(one.step, one.modules, own, link, ((0,), (1,)), cache=CACHE)
        with Executor(one.step, one.modules, own, link, ((0,), (1,), (0,)), cache=CACHE) as run:
            with raises("RHI-RUN-005", r"the line is dead\n  note: it was transfer \d+ from rank 1 to rank [02]"):
                run.run(one.arguments)
            assert link.explained
            with raises("RHI-RUN-005", "an earlier step failed"):
                run.run(one.arguments)


def naps(times_s: list[float]) -> tuple[Step, dict[str, str], list[np.ndarray]]:
    """A chain over as many ranks as there are times: each sleeps, then passes on.

    The product makes it dear enough for XLA not to run it in the caller's thread.
    """
    sleep_op.register()
    text = f"""func.func public @main(%us: tensor<i32>, %x: tensor<64x64xf32>) -> tensor<64x64xf32> {{
      %0 = {sleep_op.CUSTOM_CALL}
      %1 = stablehlo.convert %0 : (tensor<i32>) -> tensor<f32>
      %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<64x64xf32>
      %3 = stablehlo.add %2, %x : tensor<64x64xf32>
      %4 = stablehlo.dot_general %3, %x, contracting_dims = [1] x [0]\
 : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      return %4 : tensor<64x64xf32> }}"""
    number, square = Layout((), "i32", ()), Layout((64, 64), "f32", ((), ()))
    slots, out = [Slot(0, square)], [Feed(0, 0)]
    for rank in range(len(times_s)):
        slots += [Slot(rank, number), Slot(rank, square)]
        us, result = len(slots) - 2, len(slots) - 1
        out += [Feed(1 + rank, us), Run(0, (us, us - 1), (result,), Task("forward", rank, 0))]
        if rank + 1 < len(times_s):
            slots.append(Slot(rank + 1, square))
            out.append(Transfer(rank, result, len(slots) - 1))
    out += [Fetch(len(slots) - 1, 0), Free(tuple(range(len(slots) - 1)))]
    step = Step(
        (mesh_of_shape((1,)),) * len(times_s),
        (StepProgram("nap", "nap", (number, square), (square,)),),
        tuple(slots),
        tuple(out),
    )
    return (
        step,
        {"nap": text},
        [np.ones((64, 64), np.float32), *(np.array(time_s * 1e6, np.int32) for time_s in times_s)],
    )


class TestStageProgress:
    def test_what_waits_is_told_until_it_has_ended(self):
        step, modules, arguments = naps([0.0, 2.0, 0.0])
        with Executor(step, modules, devices_of_ranks(step, jax.devices())) as run:
            progress = StageProgress(run)
            assert progress.look()[:3] == (0, False, False)
            run.run(arguments)
            looks = [progress.look() for _ in range(2)]
            time.sleep(0.5)  # what has ended is counted
            looks.append(progress.look())
            assert looks[2][:3] == (1, True, True)
            assert progress.task() == (
                "rank 1 has not ended program nap on rank 1, forward of stage 1, micro-batch 0,"
                " which takes transfer 0 from rank 0 to rank 1,"
                " rank 2 has not ended program nap on rank 2, forward of stage 2, micro-batch 0,"
                " which takes transfer 1 from rank 1 to rank 2"
            )
            assert progress.look() == looks[2]
            run.wait()
            time.sleep(0.5)
            assert progress.look()[:2] == (1, False)
            assert progress.look()[3] != looks[2][3]
            assert progress.task() == ""

    def test_no_thread_is_left_in_xla(self):
        step, modules, arguments = naps([0.0, 1.0])
        with Executor(step, modules, devices_of_ranks(step, jax.devices())) as run:
            progress = StageProgress(run)
            for _ in range(2):  # two steps, the threads of both wait
                run.run(arguments)
                for _ in range(2):
                    progress.look()
            assert any(one.name.startswith("rhino-ends") for one in threading.enumerate())
            progress.close()
            assert not any(one.name.startswith("rhino-ends") for one in threading.enumerate())


class TestTrace:
    def test_every_run_is_there_once_and_a_rank_does_one_thing_at_a_time(self):
        one, recorder = mlp(4, 8), Recorder()
        with executor(one, recorder=recorder) as run:
            train(one, run.run, 2)
        recorder.close()
        runs = [item for item in one.step.instructions if isinstance(item, Run)]
        for number in range(2):
            timeline = recorder.timeline(number)
            assert sorted(str(span.task) for span in timeline.spans) == sorted(str(item.task) for item in runs)
            assert len(timeline.moves) == sum(isinstance(item, Transfer) for item in one.step.instructions)
            for rank in range(4):
                spans = [span for span in timeline.spans if span.rank == rank]
                assert all(before.end_s <= after.start_s <= after.end_s for before, after in pairwise(spans))

    def test_sleep_is_seen(self):
        step, modules, arguments = naps([0.3, 0.6])
        recorder = Recorder()
        with Executor(step, modules, devices_of_ranks(step, jax.devices()), recorder=recorder) as run:
            run.run(arguments)
            run.wait()
        recorder.close()
        first, second = recorder.timeline(0).spans
        # Lower bounds alone: a busy machine sees an end late, and the other rank's thread may see it first.
        assert first.end_s - first.start_s >= 0.25
        assert second.end_s - first.start_s >= 0.85

    def test_the_file_has_both_timelines(self):
        step, modules, arguments = naps([0.01, 0.01])
        recorder = Recorder()
        with Executor(step, modules, devices_of_ranks(step, jax.devices()), recorder=recorder) as run:
            run.run(arguments)
        recorder.close()
        events = json.loads(chrome_trace(recorder.events(), recorder.timeline(0)))["traceEvents"]
        groups = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        rows = [(groups[event["pid"]], event["tid"], event["name"]) for event in events if event["ph"] == "X"]
        for group in (SIMULATED, MEASURED):
            assert [row for row in rows if row[0] == group] == [
                (group, i, f"forward of stage {i}, micro-batch 0") for i in range(2)
            ]
        assert min(event["ts"] for event in events if event["ph"] == "X") == 0
