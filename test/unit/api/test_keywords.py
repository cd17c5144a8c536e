"""What an error says to do on a command line, it says to do by keywords in Python."""

import inspect

import pytest

import rhino
from rhino import keywords


@pytest.mark.parametrize(
    ("shell", "python"),
    [
        (
            "name the batch with --batch=NAME:DIM, or leave --stages out",
            "name the batch with batch='NAME:DIM', or leave stages out",
        ),
        ("leave --micro-batches out", "leave micro_batches out"),
        ("pin it (--pin='w=[{}, {x}]')", "pin it (pins=['w=[{}, {x}]'])"),
        (
            "at most 8 devices, e.g. --mesh=2x4, or a larger cluster",
            "at most 8 devices, e.g. mesh='2x4', or a larger cluster",
        ),
        ("leave --aot out", "leave aot out"),
        ("add --aot=memory, or allow more with --compiles", "add aot='memory', or allow more with compiles"),
        ("run rhino-opt --rhino-normalize", "run rhino-opt --rhino-normalize"),
    ],
)
def test_options_are_keywords(shell: str, python: str):
    assert keywords.in_keywords(shell) == python


def test_every_keyword_is_one():
    assert set(keywords._KEYWORDS.values()) <= set(inspect.signature(rhino.parallelize).parameters)
