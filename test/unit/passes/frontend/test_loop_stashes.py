"""Stacks that follow from others are gone from loops, and the answer is as it was.

Hundreds of drawn loops gave the same answer; these once did not.
"""

import numpy as np
import pytest
from snippets import evaluate, parse

from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.reader import walk
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize

FULL = "tensor<4x2xf32>"
WRITE = f"({FULL}, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> {FULL}"
READ = f"({FULL}, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>"


def loop(name: str, body: str, value: str, stacks: list[str], handed_on: list[str]) -> str:
    """A loop of four rounds over `%v` and stacks, which are `%p0`, `%p1` and so on in it."""
    starts = "".join(f", %p{number} = {start}" for number, start in enumerate(stacks))
    kinds = "tensor<i32>, tensor<2xf32>" + f", {FULL}" * len(stacks)
    return f"""
      %{name}:{2 + len(stacks)} = stablehlo.while(%i = %zero, %v = {value}{starts}) : {kinds} cond {{
        %more = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        {body}
        %n = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return {", ".join(["%n", "%w", *handed_on])} : {kinds}
      }}"""


def forward(values: str, stacked: list[str], starts: list[str]) -> str:
    """A loop that stacks some of the values of its body, of which the last, `%w`, goes on."""
    writes = [
        f"""%a{n} = stablehlo.reshape {one} : (tensor<2xf32>) -> tensor<1x2xf32>
        %q{n} = stablehlo.dynamic_update_slice %p{n}, %a{n}, %i, %zero : {WRITE}"""
        for n, one in enumerate(stacked)
    ]
    return loop("f", "\n".join([values, *writes]), "%x", starts, [f"%q{n}" for n in range(len(stacked))])


def back(name: str, value: str, stacks: list[str]) -> str:
    """A loop that adds up what it reads of stacks, the last element first."""
    lines = ["%k = stablehlo.subtract %three, %i : tensor<i32>"]
    for n in range(len(stacks)):
        lines += [
            f"%a{n} = stablehlo.dynamic_slice %p{n}, %k, %zero, sizes = [1, 2] : {READ}",
            f"%b{n} = stablehlo.reshape %a{n} : (tensor<1x2xf32>) -> tensor<2xf32>",
            f"%s{n} = stablehlo.add {f'%s{n - 1}' if n else '%v'}, %b{n} : tensor<2xf32>",
        ]
    lines.append(f"%w = stablehlo.tanh %s{len(stacks) - 1} : tensor<2xf32>")
    return loop(name, "\n".join(lines), value, stacks, [f"%p{n}" for n in range(len(stacks))])


def program(*lines: str) -> str:
    """Lines over `%x` and an empty stack `%y`, that return what loop `%g` comes to."""
    numbers = [
        f"%{name} = stablehlo.constant dense<{n}> : tensor<i32>"
        for name, n in {"zero": 0, "one": 1, "three": 3, "four": 4}.items()
    ]
    whole = "\n".join([*numbers, *lines])
    return (
        f"func.func @main(%x: tensor<2xf32>, %y: {FULL}) -> tensor<2xf32> {{\n{whole}\nreturn %g#1 : tensor<2xf32>\n}}"
    )


VALUES = "\n".join(
    [
        "%t = stablehlo.tanh %v : tensor<2xf32>",
        "%u = stablehlo.multiply %t, %t : tensor<2xf32>",
        "%w = stablehlo.add %u, %t : tensor<2xf32>",
    ]
)
LINES = [f"%c{n} = stablehlo.add %c{n - 1}, %t : tensor<2xf32>" for n in range(1, 1500)]
LONG = "\n".join(["%t = stablehlo.tanh %v : tensor<2xf32>", "%c0 = stablehlo.add %t, %t : tensor<2xf32>", *LINES])
CALL = f"stablehlo.custom_call @Sharding(%y) {{has_side_effect = true}} : ({FULL}) -> {FULL}"

CASES = {
    "two loops that read different stacks": (
        program(
            forward(VALUES, ["%t", "%u", "%w"], ["%y"] * 3),
            back("h", "%f#1", ["%f#3"]),
            back("g", "%h#1", ["%f#2", "%f#4"]),
        ),
        [4, 3, 3],
    ),
    "a start that is made of another's": (
        program(
            f"%s = stablehlo.sine %y : {FULL}",
            f"%m = stablehlo.negate %s : {FULL}",
            forward(VALUES, ["%t", "%u", "%w"], ["%y", "%s", "%m"]),
            back("g", "%f#1", ["%f#2", "%f#3", "%f#4"]),
        ),
        [3, 3],
    ),
    "a long body": (
        program(
            forward(f"{LONG}\n%w = stablehlo.negate %t : tensor<2xf32>", ["%t", "%c1499"], ["%y"] * 2),
            back("g", "%f#1", ["%f#2", "%f#3"]),
        ),
        [3, 3],
    ),
}


def normalized(text: str) -> tuple[str, list[int]]:
    """A normalized program, and how much each of its loops carries."""
    module = parse(text)
    with module.context:
        Normalize().run(module.operation, Remarks())
    assert module.operation.verify()
    return str(module), [len(op.operands) for op in walk(module.operation) if op.name == WHILE]


@pytest.mark.parametrize("name", CASES)
def test_stacks_that_follow_are_gone_and_the_answer_stays(name: str):
    text, carried = CASES[name]
    new, found = normalized(text)
    assert found == carried
    inputs = [np.array([0.3, -1.2], np.float32), np.zeros((4, 2), np.float32)]
    np.testing.assert_array_equal(evaluate(new, inputs)[0], evaluate(text, inputs)[0])


def test_a_start_that_does_more_than_compute_stays():
    lines = f"%s = {CALL}", forward(VALUES, ["%t", "%u"], ["%y", "%s"]), back("g", "%f#1", ["%f#2", "%f#3"])
    new, carried = normalized(program(*lines))
    assert carried == [3, 3]
    assert "stablehlo.custom_call @Sharding" in new
