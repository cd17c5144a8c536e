"""The run over programs that others wrote.

It names each ending, and a worker that dies costs it no other program.
"""

import argparse
import signal
from pathlib import Path

import pytest
from corpus import Corpus, Outcome, Worker, entries, main, outcome_of
from snippets import function, tensor

GOOD = function("%y = stablehlo.negate %x : tensor<4xf32>", {"x": tensor((4,))}, {"y": tensor((4,))})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "several.mlir").write_text(
        f"{GOOD}\n// -----\nfunc.func @bad(%x: tensor<?xf32>) {{ return }}\n", encoding="utf-8"
    )
    return tmp_path


def test_each_public_function_is_the_entry_in_turn():
    text = f"{GOOD.replace('@main', '@a')}\n{GOOD.replace('@main', '@b')}".encode()
    assert [name for name, _ in entries(text)] == [" @a", " @b"]
    assert [outcome_of(one, ["--auto-shard"]).kind for _, one in entries(text)] == ["answer", "answer"]


def test_refusals_are_told_by_id_and_whether_they_have_a_line():
    dynamic = outcome_of(b"func.func @main(%x: tensor<?xf32>) { return }", ["--auto-shard"])
    assert (dynamic.kind, dynamic.what, dynamic.is_placed) == ("refusal", "RHI-READ-004", True)
    no_entry = outcome_of(b"func.func private @f() { return }", ["--auto-shard"])
    assert (no_entry.kind, no_entry.what, no_entry.is_placed) == ("refusal", "RHI-READ-005", False)


def test_a_run_prints_a_row_a_folder(folder, capsys):
    assert main([str(folder), "--jobs=1"]) == 0
    said = capsys.readouterr().out
    assert f"| {folder} | 2 | 2 | 0 | 0 | 0 |" in said
    assert "RHI-READ-004 2" in said


def test_a_worker_that_dies_is_named_and_replaced(folder, monkeypatch):
    corpus = Corpus(argparse.Namespace(folders=[Path(folder)], cluster="cpu8", limit=60.0, jobs=1))
    give, killed = Worker.give, []

    def give_and_kill(worker, job):
        give(worker, job)
        if not killed:  # long before it has started: as if it had said that the first run begins
            killed.append(worker)
            worker.at, worker.label = 0, ""
            worker.process.kill()

    monkeypatch.setattr(Worker, "give", give_and_kill)
    report = corpus.run()
    assert report.faults == [f"signal: {folder / 'several.mlir'} part 0: the process ended with {-signal.SIGKILL}"]
    assert dict(report.counts[str(folder)]) == {"signal": 1, "answer": 1, "refusal": 2}


def test_a_program_over_the_limit_is_named(folder, monkeypatch):
    corpus = Corpus(argparse.Namespace(folders=[Path(folder)], cluster="cpu8", limit=-1.0, jobs=1))
    monkeypatch.setattr(corpus, "hear", lambda worker: None)
    report = corpus.run()
    assert [fault.split(":")[0] for fault in report.faults] == ["too long", "too long"]
    assert Outcome("too long").kind == "too long"
