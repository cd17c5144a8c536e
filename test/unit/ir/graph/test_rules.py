"""The rules that Shardy prints for real ops, read as tables."""

import re

import pytest
from snippets import RULES, context, function, parse, ruled, tensor

from rhino.ir.graph.rules import RULE, elementwise_rule, factor_name, parse_rule, resized_rule
from rhino.ir.graph.spec import PARTIAL, REPLICATED, all_specs, spec_text, split, split_dim
from rhino.ir.mlir.bindings import ir, run_pipeline
from rhino.ir.mlir.reader import walk

ARGUMENTS = {"a": tensor((4, 6)), "b": tensor((6, 8)), "s": tensor((4, 4)), "i": tensor((5, 1), "i32")}

DOT = (
    "%d = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] "
    ": (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>"
)


def texts_of(body):
    """Shardy's texts of the rules of the ops in `body`."""
    found = [op.attributes.get(RULE, None) for op in walk(ruled(function(body, ARGUMENTS, {})).operation)]
    return [str(rule) for rule in found if rule is not None]


def rule_of(body):
    (text,) = texts_of(body)
    return parse_rule(text)


def named(rule, factors):
    return {rule.names[factor] for factor in factors}


def test_a_product_has_a_factor_for_each_of_its_loops():
    rule = rule_of(
        "%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] "
        ": (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>"
    )
    i, j, k = (rule.names.index(name) for name in "ijk")
    assert [rule.sizes[factor] for factor in (i, j, k)] == [4, 8, 6]
    assert rule.operands == (((i,), (k,)), ((k,), (j,)))
    assert rule.results == (((i,), (j,)),)
    assert rule.reduction == {k}
    assert rule.fixed == frozenset()
    assert all(rule.is_major(factor) for factor in (i, j, k))


def test_a_transpose_lists_the_factors_in_another_order():
    rule = rule_of("%0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>")
    assert rule.operands[0] == tuple(reversed(rule.results[0]))
    assert rule.sizes[rule.operands[0][0][0]] == 4


def test_joining_two_dims_leaves_only_the_first_to_split():
    rule = rule_of("%0 = stablehlo.reshape %a : (tensor<4x6xf32>) -> tensor<24xf32>")
    (outer,), (inner,) = rule.operands[0]
    assert rule.results == (((outer, inner),),)
    assert (rule.sizes[outer], rule.sizes[inner]) == (4, 6)
    assert rule.is_major(outer)
    assert not rule.is_major(inner)


def test_a_reshape_across_dims_cuts_them_at_their_common_factors():
    """4x6 -> 2x12: 4 is 2 x 2, of which the first 2 stays and the second joins the 6."""
    rule = rule_of("%0 = stablehlo.reshape %a : (tensor<4x6xf32>) -> tensor<2x12xf32>")
    (first, second), (third,) = rule.operands[0]
    assert rule.results[0] == ((first,), (second, third))
    assert [rule.sizes[factor] for factor in (first, second, third)] == [2, 2, 6]
    assert [rule.is_major(factor) for factor in (first, second, third)] == [True, False, False]


def test_a_factor_behind_one_of_size_one_still_leads():
    rule = parse_rule("#sdy.op_sharding_rule<([i, j])->([ij]) {i=1, j=8}>")
    assert rule.is_major(1)
    assert not parse_rule("#sdy.op_sharding_rule<([i, j])->([ij]) {i=2, j=8}>").is_major(1)


def test_a_new_dim_of_a_broadcast_is_in_the_result_alone():
    rule = rule_of("%0 = stablehlo.broadcast_in_dim %a, dims = [0, 2] : (tensor<4x6xf32>) -> tensor<4x3x6xf32>")
    (new,) = rule.results[0][1]
    assert rule.sizes[new] == 3
    assert all(new not in dim for dim in rule.operands[0])


@pytest.mark.parametrize(
    ("body", "factor_size"),
    [
        ("%0 = stablehlo.reverse %a, dims = [1] : tensor<4x6xf32>", 6),
        ("%0 = stablehlo.slice %a [0:4, 2:5] : (tensor<4x6xf32>) -> tensor<4x3xf32>", 6),
        ("%0 = stablehlo.concatenate %a, %a, dim = 1 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x12xf32>", 12),
    ],
    ids=["reverse", "slice", "concatenate"],
)
def test_what_moves_data_within_a_dim_fixes_its_factor(body, factor_size):
    """Shardy says `permutation` for the first two and `need_replication` for the last."""
    rule = rule_of(body)
    assert [rule.sizes[factor] for factor in rule.fixed] == [factor_size]


def test_a_factorization_fixes_everything():
    rule = rule_of("%0 = stablehlo.cholesky %s : tensor<4x4xf32>")
    assert named(rule, rule.fixed) == set(rule.names) == {"i", "j"}


def test_a_gather_sums_over_the_rows_that_it_picks_from():
    rule = rule_of("""%0 = "stablehlo.gather"(%a, %i) {slice_sizes = array<i64: 1, 6>,
        dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],\
 index_vector_dim = 1>}
        : (tensor<4x6xf32>, tensor<5x1xi32>) -> tensor<5x6xf32>""")
    rows = rule.operands[0][0][0]
    assert rule.reduction == {rows}
    assert rule.sizes[rows] == 4
    assert [rule.sizes[factor] for factor in rule.fixed] == [1]


def test_an_op_of_scalars_has_no_factors():
    module = parse(
        "func.func @main(%a: tensor<f32>) -> tensor<f32> { "
        "%0 = stablehlo.negate %a : tensor<f32> return %0 : tensor<f32> }"
    )
    run_pipeline(module, RULES)
    rule = parse_rule(str(next(op.attributes[RULE] for op in walk(module.operation) if RULE in op.attributes)))
    assert (rule.sizes, rule.operands, rule.results) == ((), ((),), ((),))


def test_factors_past_z_are_numbered():
    """20 dims: Shardy's own names are those of `factor_name`, and two-part names are not taken apart."""
    kind = tensor(tuple(range(2, 22)))
    rule = parse_rule(one_rule(f"%0 = stablehlo.negate %a : {kind}", kind))
    assert rule.names == tuple(factor_name(index) for index in range(20))
    assert rule.names[17:] == ("z", "z_1", "z_2")
    assert rule.sizes == tuple(range(2, 22))
    assert rule == elementwise_rule(tuple(range(2, 22)))


def test_a_dim_of_factors_past_z_keeps_their_order():
    kind, flat = tensor((2,) * 20), tensor((2**20,))
    text = one_rule(f"%0 = stablehlo.reshape %a : ({kind}) -> {flat}", kind)
    assert "zz_1z_2" in text
    rule = parse_rule(text)
    assert rule.results == ((tuple(range(20)),),)
    assert [factor for factor in range(20) if rule.is_major(factor)] == [0]


def one_rule(body, kind):
    return str(
        next(
            op.attributes[RULE]
            for op in walk(ruled(function(body, {"a": kind}, {})).operation)
            if RULE in op.attributes
        )
    )


def test_the_table_says_what_the_attribute_says():
    """Written back in Shardy's syntax, each table parses to Shardy's own attribute."""
    body = (
        """%0 = stablehlo.reshape %a : (tensor<4x6xf32>) -> tensor<2x12xf32>
      %1 = stablehlo.cholesky %s : tensor<4x4xf32>
      """
        + DOT
    )
    texts = texts_of(body)
    assert len(texts) == 3
    for text in texts:
        rule = parse_rule(text)
        kinds = {
            word: named(rule, factors)
            for word, factors in (("reduction", rule.reduction), ("need_replication", rule.fixed))
        }
        tail = "".join(f" {word}={{{', '.join(sorted(names))}}}" for word, names in kinds.items() if names)
        sizes = ", ".join(f"{name}={size}" for name, size in zip(rule.names, rule.sizes, strict=True))
        written = (
            f"#sdy.op_sharding_rule<({spell(rule, rule.operands)})->({spell(rule, rule.results)}) {{{sizes}}}{tail}>"
        )
        with context():
            assert ir.Attribute.parse(written) == ir.Attribute.parse(re.sub("permutation", "need_replication", text))


def spell(rule, mappings):
    return ", ".join(
        "[" + ", ".join("".join(rule.names[f] for f in dim) for dim in mapping) + "]" for mapping in mappings
    )


def test_specs_are_small_integers():
    assert (REPLICATED, PARTIAL, split(0), split(3)) == (0, 1, 2, 5)
    assert [split_dim(spec) for spec in range(4)] == [None, None, 0, 1]
    assert [spec_text(spec) for spec in range(4)] == ["R", "P", "S0", "S1"]


def test_only_what_divides_can_be_split():
    assert all_specs((8, 6, 1, 0), (4,)) == (REPLICATED, split(0))
    assert all_specs((8, 6, 1, 0), (2,)) == (REPLICATED, split(0), split(1))
    assert all_specs((), (2,)) == (REPLICATED,)


RULE_IN_PARTS = "#sdy.op_sharding_rule<([i, jk], [k])->([i, jk]) {i=6, j=4, k=2} reduction={k}, custom>"


@pytest.mark.parametrize(
    ("operands", "results", "sizes"),
    [
        ([(6, 8), (2,)], [(6, 8)], (6, 4, 2)),
        ([(3, 8), (2,)], [(3, 8)], (3, 4, 2)),
        ([(6, 4), (2,)], [(6, 4)], (6, 2, 2)),
        ([(3, 8), (2,)], [(6, 8)], None),
        ([(4, 8), (2,)], [(4, 8)], None),
    ],
)
def test_a_rule_for_dims_in_parts_has_smaller_factors_or_there_is_none(operands, results, sizes):
    found = resized_rule(RULE_IN_PARTS, operands, results)
    assert (found and parse_rule(found).sizes) == sizes
    assert found is None or found.endswith("reduction={k}, custom>")
