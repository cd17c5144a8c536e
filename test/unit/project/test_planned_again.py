"""A plan is what the planner makes of it: a module that it has annotated, planned again, is the same text."""

import functools
import io
from dataclasses import replace
from pathlib import Path

import gpt
import mlp
import pytest
from training import export_step
from zoo import GPT, MLP

from rhino.tools import opt

LIT = Path(__file__).resolve().parents[2] / "lit"
FOLDERS = ("auto-shard", "rhino-choose-shardings", "rhino-normalize")
OPTIONS = ((), ("--mesh=2x4",))
PINNED = {"mlp": "*params*weight*", "gpt": "*params*embed*"}


def planned(data: bytes, *options: str) -> bytes | None:
    """The module with its plan, None where it is refused."""
    out = io.BytesIO()
    code = opt.run(["--auto-shard", "--cluster=cpu8", *options, "-"], io.BytesIO(data), out, io.StringIO())
    return out.getvalue() if code == 0 else None


@functools.cache
def models() -> dict[str, bytes]:
    """Dropout's draws are functions that are called, in loops; layers in a loop keep stacks."""
    return {
        "mlp": export_step(mlp.model(MLP)).encode(),
        "gpt": export_step(gpt.model(replace(GPT, scan=True))).encode(),
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_modules_of_every_kind_are_planned_once(folder: str):
    num_planned = 0
    for file in sorted((LIT / folder).glob("*.mlir")):
        for options in OPTIONS:
            text = planned(file.read_bytes(), *options)
            if text is not None:
                num_planned += 1
                assert planned(text, *options) == text, (file.name, options)
    assert num_planned > 5


@pytest.mark.parametrize("name", ["mlp", "gpt"])
@pytest.mark.parametrize("options", OPTIONS)
def test_steps_of_models_are_planned_once(name: str, options: tuple[str, ...]):
    text = planned(models()[name], *options)
    assert text is not None
    assert planned(text, *options) == text


@pytest.mark.parametrize("name", ["mlp", "gpt"])
@pytest.mark.parametrize("said", ["--pin", "--forbid"])
def test_what_was_asked_for_is_kept_as_it_was_found(name: str, said: str):
    words = f'{said}={PINNED[name]}=[{{}}, {{"x"}}]'
    text, with_names = planned(models()[name], words), planned(models()[name], words, "--mlir-print-debuginfo")
    assert text is not None
    assert with_names is not None
    assert planned(text) == text
    assert planned(with_names, words) == text


def test_what_is_padded_is_padded_once():
    step, names = export_step(mlp.model(replace(MLP, sizes=(15, 60, 30, 9)))).encode(), "--mlir-print-debuginfo"
    words = "--pad=*params*weight*:1"
    text, with_names = planned(step, words), planned(step, words, names)
    assert text is not None
    assert with_names is not None
    assert b"rhino.padded" in text
    assert planned(text) == text
    assert planned(with_names, words) == text
