"""Small random program graphs, and the same graph with its ops, values and arguments in another order."""

from dataclasses import replace

import numpy as np

from rhino.ir.graph.graph import Argument, Graph, OpClass, TensorType

VECTOR, SCALAR = TensorType((4,), "f32", 4), TensorType((), "f32", 4)
TYPES = (VECTOR, SCALAR)
PRODUCT, CHEAP, PAIR, SOURCE = "stablehlo.dot_general", "stablehlo.tanh", "stablehlo.custom_call", "stablehlo.constant"


def op_class(name, operands, results):
    """The class of an op whose operands and results are of the types numbered so."""
    types = [tuple(TYPES[number] for number in side) for side in (operands, results)]
    return OpClass(
        name, *types, rule=None, reduction=None, linear=(), free=name == SOURCE, fusible=name == CHEAP, flops=4
    )


def graph_of(arguments, ops, returns, aliases=None):
    """The graph of `arguments` (types) and `ops` (name, operand values, result types)."""
    value_type, value_op = list(arguments), [-1] * len(arguments)
    classes, op_classes, uses, use_start, result_start = {}, [], [], [0], []
    for number, (name, operands, results) in enumerate(ops):
        cls = op_class(name, [value_type[value] for value in operands], results)
        op_classes.append(classes.setdefault(cls, len(classes)))
        uses += operands
        use_start.append(len(uses))
        result_start.append(len(value_type))
        value_type += results
        value_op += [number] * len(results)
    ints = [
        np.array(side, dtype=np.int64)
        for side in (op_classes, use_start, uses, [*result_start, len(value_type)], value_type, value_op)
    ]
    named = tuple(Argument(f"arg{number}", (aliases or {}).get(number)) for number in range(len(arguments)))
    return Graph(tuple(classes), TYPES, *ints, named, tuple(returns), (None,) * len(returns), {})


def random_graph(seed, most=10):
    """A graph of 1 to `most` ops: products, cheap ops, ops of two results, constants; some values are scalars."""
    rng = np.random.default_rng(seed)
    types = [int(rng.random() < 0.2) for _ in range(rng.integers(1, 4))]
    arguments, ops = list(types), []
    for _ in range(rng.integers(1, most + 1)):
        name = str(rng.choice([PRODUCT, CHEAP, CHEAP, PAIR, SOURCE], p=[0.3, 0.3, 0.2, 0.15, 0.05]))
        count = {PRODUCT: 2, SOURCE: 0}.get(name, int(rng.integers(1, 4)))
        operands = [
            int(max(rng.integers(-3, len(types)), 0)) if rng.random() < 0.2 else int(rng.integers(len(types)))
            for _ in range(count)
        ]
        results = [int(rng.random() < 0.15) for _ in range(2 if name == PAIR else 1)]
        ops.append((name, operands, results))
        types += results
    returns = [int(value) for value in rng.choice(len(types), size=rng.integers(1, 3))]
    return graph_of(arguments, ops, returns)


def shuffled(graph, seed):
    """The same graph with arguments and ops in another order that runs, renamed; and where each op went [ops].

    The graph must have no loops.
    """
    rng = np.random.default_rng(seed)
    missing = [set(graph.value_op[graph.operands(op)].tolist()) - {-1} for op in range(graph.num_ops)]
    readers = [[] for _ in missing]
    for reader, makers in enumerate(missing):
        for maker in sorted(makers):
            readers[maker].append(reader)
    order, able = [], [op for op, makers in enumerate(missing) if not makers]
    while able:
        order.append(able.pop(rng.integers(len(able))))
        for reader in readers[order[-1]]:
            missing[reader].remove(order[-1])
            able += [reader] * (not missing[reader])
    arguments = rng.permutation(len(graph.arguments)).tolist()
    values = arguments + [value for op in order for value in graph.results(op)]
    place = {value: number for number, value in enumerate(values)}
    where = {op: number for number, op in enumerate(order)}
    counts = np.diff(graph.use_start)[order], np.diff(graph.result_start)[order]
    moved = replace(
        graph,
        op_class=graph.op_class[order],
        use_start=np.concatenate([[0], np.cumsum(counts[0])]),
        uses=np.array([place[value] for op in order for value in graph.operands(op).tolist()], dtype=np.int64),
        result_start=len(arguments) + np.concatenate([[0], np.cumsum(counts[1])]),
        value_type=graph.value_type[values],
        value_op=np.array([where.get(op, -1) for op in graph.value_op[values].tolist()], dtype=np.int64),
        arguments=tuple(replace(graph.arguments[number], name=f"renamed{number}") for number in arguments),
        returns=tuple(place[value] for value in graph.returns),
        fixed={place[value]: specs for value, specs in graph.fixed.items()},
    )
    return moved, np.array([where[op] for op in range(graph.num_ops)], dtype=np.int64)
