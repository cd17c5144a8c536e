"""Rules that users give for custom calls: sizes from shapes, costs, and what does not fit."""

import pytest
from snippets import class_of

from rhino.ir.diagnostics import RhinoError
from rhino.ir.request.op_rules import read_op_rules
from rhino.strategies.cost.candidates import strategies, strategy_name

ATTENTION = """
[attention]
rule = "([i, j, k, l], [i, j, m, l], [i, j, m, l])->([i, j, k, l]) need_replication={k, m}"
flops = "4 * i * j * k * l * m"
bytes = "2 * i * j * l * (2 * k + 2 * m) / 4"
"""


def read(tmp_path, text):
    (tmp_path / "rules.toml").write_text(text)
    return read_op_rules(str(tmp_path / "rules.toml"))


def test_sizes_and_costs_follow_from_shapes(tmp_path):
    rule = read(tmp_path, ATTENTION)["attention"]
    q, kv = (2, 3, 5, 7), (2, 3, 11, 7)
    sizes = rule.fitted([q, kv, kv], [q])
    assert sizes == {"i": 2, "j": 3, "k": 5, "l": 7, "m": 11}
    assert rule.cost(sizes) == {"flops": 4 * 2 * 3 * 5 * 7 * 11, "bytes": 2 * 3 * 7 * (5 + 11)}
    assert rule.text(sizes) == (
        "#sdy.op_sharding_rule<([i, j, k, l], [i, j, m, l], [i, j, m, l])->([i, j, k, l]) "
        "{i=2, j=3, k=5, l=7, m=11} need_replication={k, m}, custom>"
    )


def test_a_dim_of_several_factors_is_solved_where_one_is_unknown(tmp_path):
    rule = read(tmp_path, "[t]\nrule = '([ij, k])->([i, j, k])'")["t"]
    assert rule.fitted([(12, 5)], [(3, 4, 5)]) == {"i": 3, "j": 4, "k": 5}
    rule = read(tmp_path, "[t]\nrule = '([ij])->([ji]) {j=4}'")["t"]
    assert rule.fitted([(12,)], [(12,)]) == {"i": 3, "j": 4}
    with pytest.raises(ValueError, match="the size of factor i does not follow"):
        read(tmp_path, "[t]\nrule = '([ij])->([ji])'")["t"].fitted([(12,)], [(12,)])


@pytest.mark.parametrize(
    ("operands", "results", "why"),
    [
        ([(4, 4)], [(4, 4), (4,)], "1 results, and the op 2"),
        ([(4, 4), (4,)], [(4, 4)], "1 operands, and the op 2"),
        ([(4,)], [(4, 4)], "operand 0 has 2 dims in the rule, and 1 in the op"),
        ([(4, 4)], [(4, 5)], "result 0 dim 1 has size 5 in the op, and j=4 in the rule"),
    ],
)
def test_another_shape_than_the_rule_s_is_named(tmp_path, operands, results, why):
    with pytest.raises(ValueError, match=why):
        read(tmp_path, "[t]\nrule = '([i, j])->([i, j])'")["t"].fitted(operands, results)


@pytest.mark.parametrize(
    "cost",
    ["i.real", "f(i)", "i if j else 1", "[i]", "'i'", "i <", "lambda: 1", "1 - 2", "1 / 0", "9 ** 9 ** 9 ** 9", "i j"],
)
def test_a_cost_is_arithmetic_and_nothing_else(tmp_path, cost):
    with pytest.raises(RhinoError) as raised:
        read(tmp_path, f'[t]\nrule = "([i, j])->([i, j])"\nflops = "{cost}"')
    assert raised.value.id == "RHI-RULE-001"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("flops = 'i'", "[product]: expected a table with a rule"),
        ("rule = '([i, k], [k, j])->([i, j]) sum={k}'", "[product]: got rule '([i, k], [k, j])->([i, j]) sum={k}'"),
        ("rule = '([i])->([i])'\nflops = 'open(i)'", "[product]: flops: 'open(i)' is no sum or product of factors"),
    ],
)
def test_a_table_that_is_no_rule_is_told_why(tmp_path, text, why):
    with pytest.raises(RhinoError) as raised:
        read(tmp_path, f"[product]\n{text}")
    assert raised.value.id == "RHI-RULE-001"
    assert raised.value.what.startswith(why)


def test_a_custom_call_is_split_by_its_owner_s_rule_alone():
    kind, call = "tensor<4x4xf32>", "stablehlo.custom_call"
    rule = "sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i]) {i=4, j=4} reduction={j}"
    text = (
        f"func.func @main(%x: {kind}) -> tensor<4xf32> {{\n"
        f"%y = {call} @t(%x) {{{rule}MARK>}} : ({kind}) -> tensor<4xf32>\nreturn %y : tensor<4xf32>\n}}"
    )
    custom, plain = (class_of(text.replace("MARK", mark), call) for mark in (", custom", ""))
    assert [strategy_name(custom, s.strategy) for s in strategies(custom, (2,))] == ["replicate", "i", "j"]
    assert [strategy_name(plain, s.strategy) for s in strategies(plain, (2,))] == ["replicate"]
