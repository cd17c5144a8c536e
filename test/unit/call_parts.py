"""Calls of kernels for GPUs, on operands of other sizes than those that they are made for."""

from rhino.ir.calls.gpu_rules import fit_gpu_kernel, gpu_rule, note_types
from rhino.ir.graph.rules import Rule, parse_rule
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import walk


def rule_of(op) -> Rule:
    """The rule that a kernel shows, which its call then has."""
    with op.context:
        found = gpu_rule(op)
        assert found is not None
        op.attributes["sdy.sharding_rule"] = ir.Attribute.parse(found.text)
    assert op.verify()
    return parse_rule(found.text)


def free(rule: Rule) -> frozenset[int]:
    """The factors that can be split."""
    return frozenset(factor for factor, size in enumerate(rule.sizes) if size > 1) - rule.fixed


def split_dims(op) -> list[set[int]]:
    """The dims of each operand and result that can be split."""
    rule = rule_of(op)
    return [
        {number for number, dim in enumerate(dims) if dim and dim[0] in free(rule)}
        for dims in (*rule.operands, *rule.results)
    ]


def types_of(op) -> list[str]:
    """The types of operands and results."""
    return [str(value.type) for value in (*op.operands, *op.results)]


def fitted(op, types):
    """The module of the call for operands and results of other types, given as text, and the call."""
    operands, results = types[: len(op.operands)], types[len(op.operands) :]
    arguments = ", ".join(f"%a{number}: {kind}" for number, kind in enumerate(operands))
    given = ", ".join(f"%a{number}" for number in range(len(operands)))
    text = f"""func.func @f({arguments}) -> ({", ".join(results)}) {{
        %r:{len(results)} = "stablehlo.custom_call"({given}) {{call_target_name = "any"}}
            : ({", ".join(operands)}) -> ({", ".join(results)})
        return {", ".join(f"%r#{number}" for number in range(len(results)))} : {", ".join(results)}
    }}"""
    module = ir.Module.parse(text, op.context)
    made = next(one for one in walk(module.operation) if one.name == "stablehlo.custom_call")
    note_types(op)
    for number in range(len(op.attributes)):
        made.attributes[op.attributes[number].name] = op.attributes[number].attr
    fit_gpu_kernel(made)
    return module, made
