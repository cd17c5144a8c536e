"""Programs that nobody wrote, under plans that nobody would choose: the answer is that of one device.

A longer run of the same: `bench/correctness.py programs`.
"""

import jax
import jax.numpy as jnp
from drawn_plans import MOODS
from drawn_steps import STEPS
from every_op import STABLEHLO
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import program, random_steps, try_program
from spliced_ops import CASES, call_case, spliced

from rhino.ir.mlir.bindings import ir, make_context


@settings(max_examples=25, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, seed=st.integers(0, 99), mood=st.sampled_from(MOODS), mesh=st.sampled_from(["4", "2x2"]))
def test_a_random_program_under_a_random_plan_gives_the_answer_of_one_device(steps, seed, mood, mesh):
    passes, line = try_program(steps, seed, mood, mesh)
    assert passes, line


def test_programs_are_made_of_many_ops():
    """So that one in which nothing fits together is the exception."""
    text = "".join(program(random_steps(seed, 12)) for seed in range(20))
    wanted = [
        "dot_general",
        "convolution",
        "reduce",
        "gather",
        "scatter",
        "while",
        "case",
        "sort",
        "reduce_window",
        "dynamic_slice",
    ]
    assert [name for name in wanted if f"stablehlo.{name}" not in text] == []


def test_every_op_that_can_be_run_is_among_them():
    """All in one program: each is called on floats, and gives some."""

    def run(value, integers):
        return [call_case(number, [value], integers) for number in range(len(CASES))]

    kinds = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((12,), jnp.int32)
    text = spliced(jax.jit(run).lower(*kinds).as_text())
    assert ir.Module.parse(text, make_context()).operation.verify()
    wanted = [name for name, case in STABLEHLO.items() if not case.refused and not case.not_run]
    assert [name for name in wanted if f"stablehlo.{name}" not in text and name != "return"] == []
