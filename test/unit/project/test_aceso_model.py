"""Aceso's model (bench/aceso_model.py), on made-up tables: a plan worked by hand, and our search against many plans."""

import itertools

import aceso
import numpy as np
import pytest
import report
from aceso_model import AcesoModel, OpPlan, Plan, Setup, StagePlan, reshard
from aceso_part import write_tables
from aceso_search import search

from rhino.ir.cluster.aceso_tables import MEGABYTE, read_aceso


def model_of(tmp_path, memory_mb, layers=2, devices=2):
    tables = read_aceso(write_tables(tmp_path), "gpt_1_3B")
    return AcesoModel(tables, Setup(16, (1, 2), layers, 1, devices, memory_mb * MEGABYTE, 6.0, resharded=True))


def stage_of(start, end, op, again=()):
    ops = [OpPlan(op.parts, op.copies, op.form, at in again) for at in range(start, end)]
    return StagePlan(start, op.parts * op.copies, tuple(ops))


def test_two_stages_worked_by_hand(tmp_path):
    model = model_of(tmp_path, 1000, layers=1)
    one = OpPlan(1, 1)
    # The second stage computes its score, softmax and dropout again.
    plan = Plan(1, (stage_of(0, 3, one), stage_of(3, 10, one, again=(3, 4, 5))))
    figures = model.evaluate(plan)
    # A rate is of gigabytes of 1,000 MB in the model: 16 MB go at the rate of 8 MB and more, 0.01 MB at that of 1 MB.
    sent_ms = 16 / 40
    first_ms = (100 + 150 + 20 + 40 + 200 + 400) / 1e3 + 0.01 / 10 + sent_ms
    again_ms = (150 + 120 + 110) / 1e3
    last_ms = (150 + 300 + 120 + 200 + 110 + 140 + 150 + 300 + 30 + 30 + 20 + 40 + 500 + 800) / 1e3 + again_ms + sent_ms
    assert figures.stage_s == pytest.approx((first_ms * 1e-3, last_ms * 1e-3))
    assert figures.step_s == pytest.approx((15 * last_ms + first_ms + last_ms) * 1e-3)
    # Parameters 8 times, the stash of two micro-batches, and the parameters' size, which is more than what is reserved.
    first = 26 * 8 + 2 * (0.01 + 6 + 4 + 12) + 26
    # Softmax writes over its operand, dropout keeps half as much again; score's stash is saved, softmax's is none.
    stash = 32 + 0 + 48 + 4 + 6 + 4 + 30
    last = 20 * 8 + (16 + stash - 32) + 32 + 20
    assert figures.stage_bytes == pytest.approx((first * MEGABYTE, last * MEGABYTE))


def test_reshards_are_those_of_one_step():
    whole, split, by_examples = (2, (1, 1, 1)), (1, (1, 1, 2)), (1, (1, 2, 1))
    assert reshard(whole, whole) == reshard(None, split) == ()
    assert reshard(whole, split) == (("split", 2), ("all_gather", 2))
    assert reshard(split, whole) == (("all_gather", 2), ("split", 2))
    assert reshard(split, by_examples) == (("all_to_all", 2), ("all_to_all", 2))


@pytest.mark.parametrize("strategy", ["best", "aceso", "both"])
@pytest.mark.parametrize("memory_mb", [1000, 450, 400])
def test_no_plan_drawn_at_random_beats_the_search(tmp_path, memory_mb, strategy):
    model = model_of(tmp_path, memory_mb)
    plan, figures = search(model, strategy)
    assert figures == model.evaluate(plan)
    assert max(figures.stage_bytes) <= memory_mb * MEGABYTE
    draw, num, least_s = np.random.default_rng(0), len(model.line), np.inf
    for _ in range(400):
        examples = int(draw.integers(1, 3))
        cut = sorted({0, *draw.integers(1, num, int(draw.integers(0, 2))).tolist(), num})
        count = 2 // (len(cut) - 1)
        ways = [one for one in (OpPlan(count, 1), OpPlan(1, count)) if examples // one.copies]
        stages = []
        for start, end in itertools.pairwise(cut):
            op, first = ways[draw.integers(len(ways))], int(draw.integers(start, end))
            stages.append(stage_of(start, end, op, again=range(first, first + int(draw.integers(0, 8)))))
        found = model.evaluate(Plan(examples, tuple(stages)))
        if max(found.stage_bytes) <= memory_mb * MEGABYTE:
            least_s = min(least_s, found.step_s)
    assert figures.step_s <= least_s < np.inf


@pytest.mark.parametrize(("known_s", "code"), [(10.0, 0), (0.1, 1)])
def test_the_command_compares_with_what_is_known(tmp_path, capsys, monkeypatch, known_s, code):
    write_tables(tmp_path)
    case = aceso.Case("gpt_1_3B", 1, 1, 2, known_s, is_checked=True)
    monkeypatch.setattr(aceso, "CASES", {"gpt-1.3b": case})
    assert report.run(aceso.__doc__, aceso.QUESTION, [str(tmp_path)]) == 0
    assert report.run(aceso.__doc__, aceso.QUESTION, [str(tmp_path), "--check", "--strategy=best,both"]) == code
    written = capsys.readouterr()
    assert "| gpt-1.3b | best | 1 x 2 |" in written.out
    assert (f"s, {known_s:.2f} s are known" in written.err) == bool(code)
