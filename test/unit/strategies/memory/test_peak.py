"""The program of a device as XLA has it: what it reads in which order, and what is computed inside what."""

import pytest
from choices import S0, S1, R
from local_programs import SCATTER, local
from snippets import class_of, function, program_of, tensor

from rhino.ir.graph.graph import COPIED_UPDATE
from rhino.ir.graph.spec import split
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.cost.candidates import State
from rhino.strategies.memory.buffer_assignment import Buffer, packed
from rhino.strategies.memory.buffers import arranged
from rhino.strategies.memory.device_graph import device_graph
from rhino.strategies.memory.fusion import fuse
from rhino.strategies.memory.op_order import schedules_fused
from rhino.strategies.memory.peak import Lives

# What is computed inside what

SUM = (
    "stablehlo.reduce({value} init: %o) applies stablehlo.{how} across dimensions = [1] "
    ": ({kind}, tensor<f32>) -> {rows}"
)


def fused(body, arguments, results):
    """What is fused of a body, its values and ops by the names of these, the first of each, and its buffers."""
    graph = program_of(function(body, arguments, results)).graph
    makers = {}
    for op in range(graph.num_ops):
        makers.setdefault(graph.cls(op).name.removeprefix("stablehlo."), op)
    found = fuse(graph)
    in_memory = {name: found.in_memory[graph.results(op).start] for name, op in makers.items()}
    return found, in_memory, makers, Lives(graph, found, schedules_fused(graph, found)[0])


def test_who_reads_one_operand_of_its_rank_is_computed_again():
    """A bias that is added for a product is in memory, and is added again inside the loop beside.

    A sum of two tensors is read by both.
    """
    kind, bias = tensor((8, 8)), tensor((8,))
    product = f"stablehlo.dot_general %h, %x, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}"
    rest = f"%y = {product}\n%z = stablehlo.tanh %h : {kind}"
    broadcast = (
        f"%c = stablehlo.broadcast_in_dim %b, dims = [1] : ({bias}) -> {kind}\n%h = stablehlo.add %x, %c : {kind}\n"
    )
    for first, again in ((broadcast, True), (f"%h = stablehlo.add %x, %v : {kind}\n", False)):
        found, in_memory, makers, _ = fused(first + rest, {"x": kind, "v": kind, "b": bias}, {"y": kind, "z": kind})
        assert in_memory["add"]
        assert ((makers["tanh"], 0) in found.uses) == again


def test_what_is_computed_inside_others_reads_few_values():
    """Of a sum of seventy values one part lies in memory, so that each kernel reads 63 at most.

    A sum of sixty is computed at once.
    """
    kind = tensor((4, 8))
    for count, kept in ((60, 0), (70, 1)):
        names = [f"a{number}" for number in range(count)]
        sums = ["%a0", *(f"%s{number}" for number in range(1, count))]
        body = "\n".join(f"%s{n} = stablehlo.add {sums[n - 1]}, %a{n} : {kind}" for n in range(1, count))
        graph = program_of(function(body, dict.fromkeys(names, kind), {sums[-1][1:]: kind})).graph
        assert sum(fuse(graph).in_memory[count:-1]) == kept


@pytest.mark.parametrize(
    ("columns", "op", "inside"), [(512, "subtract", False), (256, "subtract", True), (512, "multiply", True)]
)
def test_a_library_reduces_many_elements_and_takes_products_in(columns, op, inside):
    kind, rows = tensor((8, columns)), tensor((8,))
    body = f"%o = stablehlo.constant dense<0.0> : tensor<f32>\n%d = stablehlo.{op} %x, %v : {kind}\n"
    found, in_memory, makers, _ = fused(
        body + "%y = " + SUM.format(value="%d", how="add", kind=kind, rows=rows), {"x": kind, "v": kind}, {"y": rows}
    )
    assert in_memory[op] != inside
    assert (makers["reduce"] in found.library) == (columns == 512)


@pytest.mark.parametrize(("shape", "inside"), [((2, 64, 64), False), ((1, 64, 64), True)])
def test_the_library_takes_the_exponential_of_what_a_maximum_is_subtracted_from(shape, inside):
    """The product of matrices before it, scaled by a constant, is in memory for that alone.

    A dim of one element rules it out.
    """
    kind, rows = tensor(shape), tensor(shape[:2])
    body = f"""%o = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %s = stablehlo.constant dense<0.5> : {kind}
      %p = stablehlo.dot_general %x, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1]\
 : ({kind}, {kind}) -> {kind}
      %q = stablehlo.multiply %p, %s : {kind}
      %m = {SUM.format(value="%q", how="maximum", kind=kind, rows=rows).replace("[1]", "[2]")}
      %r = stablehlo.broadcast_in_dim %m, dims = [0, 1] : ({rows}) -> {kind}
      %d = stablehlo.subtract %q, %r : {kind}
      %y = stablehlo.exponential %d : {kind}
      %z = stablehlo.add %y, %s : {kind}"""
    found, in_memory, makers, lives = fused(body, {"x": kind, "v": kind}, {"y": kind, "z": kind})
    held = {name for name, lies in in_memory.items() if lies and name != "constant"}
    assert held == {"exponential", "add"}
    assert {makers[name] for name in ("dot_general", "multiply", "reduce", "exponential")} <= found.library
    in_library, later = (lives.plan.stop[makers[name]] for name in ("exponential", "add"))
    ends = [one.end for one in lives.repeated() if one.num_bytes > 64]
    assert ends == ([] if inside else [in_library])
    assert in_library < later


@pytest.mark.parametrize(("rows", "held"), [(4096, 1), (2048, 0)])
def test_the_library_goes_on_behind_a_reduction_of_many_results(rows, held):
    """What it multiplies by there lies in memory."""
    kind, row = tensor((rows, 4)), tensor((rows,))
    body = f"""%o = stablehlo.constant dense<0.0> : tensor<f32>
      %s = stablehlo.constant dense<0.5> : {row}
      %t = {SUM.format(value="%x", how="add", kind=kind, rows=row)}
      %n = stablehlo.negate %t : {row}
      %y = stablehlo.multiply %n, %s : {row}"""
    *_, lives = fused(body, {"x": kind}, {"y": row})
    assert [one.num_bytes for one in lives.repeated() if one.num_bytes > 64] == [4 * rows] * held


@pytest.mark.parametrize(("rows", "is_one"), [(4096, True), (2048, False)])
def test_the_gradient_of_a_softmax_is_one_call_of_the_library_where_rows_are_many(rows, is_one):
    """With the product that comes before it. Its result lies in memory, once for all that reads it."""
    kind, row = tensor((rows, 4)), tensor((rows,))
    body = f"""%o = stablehlo.constant dense<0.0> : tensor<f32>
      %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({kind}, {tensor((4, 4))}) -> {kind}
      %q = stablehlo.multiply %p, %e : {kind}
      %t = {SUM.format(value="%q", how="add", kind=kind, rows=row)}
      %n = stablehlo.negate %t : {row}
      %b = stablehlo.broadcast_in_dim %n, dims = [0] : ({row}) -> {kind}
      %a = stablehlo.add %p, %b : {kind}
      %s = stablehlo.subtract %a, %e : {kind}
      %y = stablehlo.tanh %s : {kind}
      %z = stablehlo.cosine %s : {kind}"""
    _, in_memory, *_ = fused(body, {"x": kind, "w": tensor((4, 4)), "e": kind}, {"y": kind, "z": kind})
    assert {name for name in ("dot_general", "reduce", "add", "subtract") if in_memory[name]} == (
        {"subtract"} if is_one else {"dot_general", "reduce"}
    )


def test_a_library_repeats_what_it_divides_by_though_another_op_multiplies_by_its_inverse():
    """The gradient of a softmax divides by the sums that its result was divided by."""
    kind, row = tensor((4096, 4)), tensor((4096,))
    body = f"""%o = stablehlo.constant dense<0.0> : tensor<f32>
      %d = stablehlo.broadcast_in_dim %r, dims = [0] : ({row}) -> {kind}
      %f = stablehlo.divide %e, %d : {kind}
      %z = stablehlo.tanh %f : {kind}
      %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({kind}, {tensor((4, 4))}) -> {kind}
      %q = stablehlo.multiply %p, %e : {kind}
      %t = {SUM.format(value="%q", how="add", kind=kind, rows=row)}
      %n = stablehlo.negate %t : {row}
      %b = stablehlo.broadcast_in_dim %n, dims = [0] : ({row}) -> {kind}
      %g = stablehlo.divide %p, %d : {kind}
      %y = stablehlo.add %g, %b : {kind}"""
    arguments = {"x": kind, "w": tensor((4, 4)), "e": kind, "r": row}
    *_, lives = fused(body, arguments, {"y": kind, "z": kind})
    graph = lives.graph
    makers = enumerate(graph.value_op.tolist())
    held = {value for value, op in makers if lives.fused.in_memory[value] and op >= 0 and not lives.is_free[value]}
    assert held == {*graph.returns}


def test_of_two_that_are_divided_by_what_is_broadcast_the_first_is_multiplied_by_its_inverse():
    """That is not costly, and is computed in each of its readers."""
    kind, row = tensor((8, 4)), tensor((8,))
    readers = [
        f"%{name}{of} = stablehlo.{op} %{of} : {kind}" for of in "pq" for name, op in (("s", "tanh"), ("c", "cosine"))
    ]
    body = f"""%d = stablehlo.broadcast_in_dim %r, dims = [0] : ({row}) -> {kind}
      %p = stablehlo.divide %x, %d : {kind}
      %q = stablehlo.divide %w, %d : {kind}
      """ + "\n".join(readers)
    results = dict.fromkeys(("sp", "cp", "sq", "cq"), kind)
    *_, lives = fused(body, {"x": kind, "w": kind, "r": row}, results)
    graph = lives.graph
    divided = [graph.results(op).start for op in range(graph.num_ops) if graph.cls(op).name == "stablehlo.divide"]
    assert [lives.fused.in_memory[value] for value in divided] == [False, True]


# The program of a device


@pytest.mark.parametrize(
    ("source", "target", "names"),
    [
        (S0, R, ["tanh", "all_gather"]),
        (S1, R, ["tanh", "transpose", "all_gather", "transpose"]),  # its dim is made the outermost, and put back
        (R, S1, ["tanh", "dynamic_slice"]),
        (S0, S1, ["tanh", "slice", "slice", "all_to_all", "join", "transpose"]),
    ],
)
def test_how_a_value_is_brought_from_one_spec_to_another(source, target, names):
    kind = tensor((4, 8))
    found, graph = local(
        f"%y = stablehlo.tanh %x : {kind}", {"x": kind}, {"y": kind}, {0: source, 1: source}, (target,)
    )
    assert found == names
    assert graph.type_of(graph.returns[0]).num_bytes == 128 // (1 if target == R else 2)


@pytest.mark.parametrize(
    ("shape", "copied"), [((2, 8), False), ((4, 8), True), ((4, 1, 2), True), ((2, 3, 2), True), ((2, 1, 2), False)]
)
def test_what_an_all_to_all_joins_lies_along_the_dim_that_is_cut(shape, copied):
    """It is copied in order, unless the dims from the one that becomes whole to that one have one element a device."""
    kind, last = tensor(shape), split(len(shape) - 1)
    found, _ = local(f"%y = stablehlo.tanh %x : {kind}", {"x": kind}, {"y": kind}, {0: S0, 1: S0}, (last,))
    assert found == ["tanh", "slice", "slice", "all_to_all", "join", *["transpose"] * copied]


@pytest.mark.parametrize("source", [S0, S1])
def test_one_device_sends_nothing_and_waits_for_no_sum(source):
    """A plan may split along an axis of one device.

    Collectives along it would copy, and join sums with all that waits.
    """
    kind, total = tensor((4, 8)), tensor((8,))
    body = f"""%o = stablehlo.constant dense<0.0> : tensor<f32>
      %y = stablehlo.tanh %x : {kind}
      %z = stablehlo.reduce(%y init: %o) applies stablehlo.add across dimensions = [0]\
 : ({kind}, tensor<f32>) -> {total}"""
    found, _ = local(body, {"x": kind}, {"y": kind, "z": total}, {0: source, 2: source}, (R, R), size=1)
    assert found == ["constant", "tanh", "reduce"]


@pytest.mark.parametrize(("other", "returned", "copies"), [("tanh", R, 0), ("tanh", S1, 1), ("reverse", R, 1)])
def test_what_two_collectives_read_is_copied_once_and_not_where_all_want_it_in_their_order(other, returned, copies):
    """What is computed from it element by element, and gathered as well, lies in that order.

    What is not gathered, or moved, does not.
    """
    kind = tensor((4, 8))
    last = f"stablehlo.{other} %y{', dims = [0]' if other == 'reverse' else ''} : {kind}"
    body = f"%y = stablehlo.negate %x : {kind}\n%z = stablehlo.reverse %y, dims = [1] : {kind}\n%w = {last}"
    found, _ = local(
        body, {"x": kind}, {"y": kind, "z": kind, "w": kind}, {0: S1, 1: S1, 2: R, 3: S1}, (R, R, returned)
    )
    gather = ["all_gather", "transpose"]
    end = ["transpose", *gather] if returned == R else []
    assert found == ["negate", *["transpose"] * copies, *gather, "reverse", other, *gather, *end]


@pytest.mark.parametrize(("second", "cuts"), [(S0, 1), (S1, 2)])
def test_what_is_cut_out_of_a_value_for_one_op_is_there_for_the_next(second, cuts):
    """Not so another part of it."""
    kind = tensor((8, 8))
    body = f"%y = stablehlo.tanh %x : {kind}\n%z = stablehlo.negate %x : {kind}"
    found, _ = local(body, {"x": kind}, {"y": kind, "z": kind}, {0: R, 1: S0, 2: second}, (S0, second))
    assert sorted(found) == sorted(["dynamic_slice"] * cuts + ["tanh", "negate"])


@pytest.mark.parametrize(
    ("first", "cuts"), [("%y = stablehlo.tanh %x : KIND", 1), ("%y = stablehlo.tanh %v : KIND", 2)]
)
def test_what_a_loop_cuts_out_of_a_value_is_there_only_in_it(first, cuts):
    """Behind the loop the same part is cut out again, unless it was there before."""
    kind, count = tensor((8, 8)), "tensor<i32>"
    body = f"""{first.replace("KIND", kind)}
      %o = stablehlo.constant dense<0> : {count}
      %most = stablehlo.constant dense<3> : {count}
      %e:2 = stablehlo.while(%i = %o, %a = %v) : {count}, {kind} cond {{
        %more = stablehlo.compare LT, %i, %most : ({count}, {count}) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        %b = stablehlo.add %a, %x : {kind}
        stablehlo.return %i, %b : {count}, {kind}
      }}
      %z = stablehlo.negate %x : {kind}"""
    arguments = {"x": kind, "v": kind}
    graph = program_of(function(body, arguments, {"e#1": kind, "y": kind, "z": kind})).graph
    specs = {value: S0 for value in range(1, graph.num_values) if graph.type_of(value).shape}
    found, _ = local(body, arguments, {"e#1": kind, "y": kind, "z": kind}, specs, (S0,) * 3)
    assert found.count("dynamic_slice") == cuts


@pytest.mark.parametrize(("shape", "heap"), [((64, 16), 4), ((4, 16, 16), 8)])
def test_nothing_is_written_over_a_view_that_is_computed_inside(shape, heap):
    """Of more than two dims a product is a view of one of matrices: what is added to it needs memory of its own.

    Here it is returned.
    """
    left, result = tensor(shape), tensor((*shape[:-1], 16))
    body = f"""%p = stablehlo.dot_general %x, %w, contracting_dims = [{len(shape) - 1}] x [0]\
 : ({left}, {tensor((16, 16))}) -> {result}
      %q = stablehlo.add %p, %x : {result}
      %y = stablehlo.dot_general %q, %w, contracting_dims = [{len(shape) - 1}] x [0]\
 : ({result}, {tensor((16, 16))}) -> {result}
      %z = stablehlo.add %y, %x : {result}"""
    _, graph = local(body, {"x": left, "w": tensor((16, 16))}, {"z": result}, {}, (R,))
    found = fuse(graph)
    lives = Lives(graph, found, schedules_fused(graph, found)[0])
    assert packed([*lives.buffers()], [*lives.vacant()], lives.num_times).heap_bytes == heap * 1024
    assert sum(buffer.over >= 0 for buffer in lives.buffers()) == (heap == 4)


def test_a_heap_with_a_gap_that_hangs_on_who_comes_first_is_told_larger_by_a_part_of_it():
    """In XLA's order for these lives there is no gap.

    In others two of one size lie apart, with nothing between them.
    """
    lives = [(2, 0, 0), (1, 0, 3), (1, 1, 5), (1, 5, 6), (1, 5, 6)]
    found = packed([Buffer(size * 1024, start, end, rank) for rank, (size, start, end) in enumerate(lives)], [], 8)
    assert found.live_bytes == 3 * 1024
    assert 3 * 1024 < found.heap_bytes < 4 * 1024


@pytest.mark.parametrize(("shape", "reads"), [((4, 8), ""), ((4, 2, 8), "reshape")])
def test_a_product_of_matrices_reads_what_is_transposed_as_it_lies(shape, reads):
    """Others want the summed dims of the right operand first, and read the transpose."""
    kind, turned, left = tensor(shape), tensor((shape[-1], *shape[:-1])), tensor((16, 8))
    result = tensor((16, *shape[:-1]))
    body = f"""%t = stablehlo.transpose %x, dims = [{", ".join(map(str, (len(shape) - 1, *range(len(shape) - 1))))}]\
 : ({kind}) -> {turned}
      %y = stablehlo.dot_general %v, %t, contracting_dims = [1] x [0] : ({left}, {turned}) -> {result}"""
    names, graph = local(body, {"x": kind, "v": left}, {"y": result}, {}, (R,))
    maker = int(graph.value_op[graph.operands(names.index("dot_general"))[1]])
    assert names[maker] == reads if reads else maker < 0


@pytest.mark.parametrize(
    ("other", "loops", "before"), [("", 2, ["transpose"]), ("%n = stablehlo.negate %part : PART", 1, [])]
)
def test_a_stack_whose_parts_are_only_gathered_is_copied_before_all_loops(other, loops, before):
    """The dim that is gathered is not its outermost. Where something else reads the parts too, it stays as it is."""
    stack, part, row, count = tensor((3, 4, 8)), tensor((1, 4, 8)), tensor((4, 8)), "tensor<i32>"
    body = "\n".join(
        f"%{name} = stablehlo.constant dense<{number}> : {count}"
        for name, number in (("zero", 0), ("one", 1), ("most", 3))
    )
    for number in range(loops):
        body += f"""
          %v{number + 1}:3 = stablehlo.while(%i = %zero, %v = %v{number}{"#1" if number else ""}, %s = %x)\
 : {count}, {row}, {stack} cond {{
            %more = stablehlo.compare LT, %i, %most : ({count}, {count}) -> tensor<i1>
            stablehlo.return %more : tensor<i1>
          }} do {{
            %part = stablehlo.dynamic_slice %s, %i, %zero, %zero, sizes = [1, 4, 8]\
 : ({stack}, {count}, {count}, {count}) -> {part}
            {other.replace("PART", part)}
            %w = stablehlo.reshape %part : ({part}) -> {row}
            %y = stablehlo.add %v, %w : {row}
            %j = stablehlo.add %i, %one : {count}
            stablehlo.return %j, %y, %s : {count}, {row}, {stack}
          }}"""
    graph = program_of(function(body, {"x": stack, "v0": row}, {f"v{loops}#1": row})).graph
    stored = [S1 if len(kind.shape) == 3 else R for kind in map(graph.type_of, range(graph.num_values))]
    states = []
    for op in range(graph.num_ops):
        values, results = graph.operands(op).tolist(), graph.results(op)
        needs = [R if graph.cls(op).name == "stablehlo.reshape" else stored[value] for value in values]
        states.append(State((-1,), tuple(needs), tuple(stored[value] for value in results)))
    written = device_graph(ShardingPlan(graph, (2,), tuple(states), tuple(stored), (R,), hoists=True))
    names = [written.cls(op).name.removeprefix("stablehlo.") for op in range(written.num_ops)]
    in_loop = ["while", "dynamic_slice", *["negate"] * bool(other), "all_gather", "reshape", "add", "add", "return"]
    assert names == ["constant"] * 3 + before + in_loop * loops
    assert all(
        int(written.operands(loop.op)[2]) == (written.results(3).start if before else 0) for loop in written.loops
    )


@pytest.mark.parametrize(("stored", "again"), [(R, True), (S0, True), (split(3), False)])
def test_a_constant_lies_as_what_selects_from_it_is_gathered_and_who_reads_a_copy_of_it_is_computed_once(stored, again):
    """The constant is gathered along the minor dim.

    Then a maximum with it, which a convolution reads in rows, reads two tensors: the value and the copy.
    """
    image, filters, flags = tensor((2, 4, 4, 8)), tensor((3, 3, 8, 8)), "tensor<2x4x4x8xi1>"
    body = f"""%c = stablehlo.constant dense<0.0> : {image}
      %m = stablehlo.maximum %x, %c : {image}
      %y = stablehlo.convolution(%m, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {{pad = [[1, 1], [1, 1]]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : ({image}, {filters}) -> {image}
      %z = stablehlo.tanh %m : {image}
      %p = stablehlo.compare GT, %x, %c : ({image}, {image}) -> {flags}
      %s = stablehlo.select %p, %v, %c : {flags}, {image}"""
    arguments, results = {"x": image, "w": filters, "v": image}, {"y": image, "z": image, "s": image}
    graph = local(body, arguments, results, dict.fromkeys((2, 7, 8), stored), (R, R, R))[1]
    names = [graph.cls(op).name for op in range(graph.num_ops)]
    assert ((names.index("stablehlo.tanh"), 0) in fuse(graph).uses) == again


def test_all_reduces_are_joined_up_to_one_that_depends_on_them():
    """Sums wait for each other, but not for a sum that reads one of them, nor for one of another type."""
    kind, row, long = tensor((4, 8)), tensor((8,)), "tensor<8xf64>"

    def total(value, element="f32", zero="%o"):
        types = f"(tensor<4x8x{element}>, tensor<{element}>) -> tensor<8x{element}>"
        return f"stablehlo.reduce({value} init: {zero}) applies stablehlo.add across dimensions = [0] : {types}"

    body = f"""%o = stablehlo.constant dense<0.0> : tensor<f32>
      %n = stablehlo.constant dense<0.0> : tensor<f64>
      %y = {total("%x")}
      %m = {total("%l", "f64", "%n")}
      %b = stablehlo.broadcast_in_dim %y, dims = [1] : ({row}) -> {kind}
      %p = stablehlo.multiply %x, %b : {kind}
      %z = {total("%p")}
      %u = {total("%v")}"""
    arguments, results = {"x": kind, "v": kind, "l": "tensor<4x8xf64>"}, {"u": row, "m": long, "y": row, "z": row}
    names, graph = local(body, arguments, results, {0: S0, 1: S0, 2: S0, 7: S0, 8: S0}, (R,) * 4)
    sums = [graph.results(op) for op, name in enumerate(names) if name == "all_reduce"]
    u, m, y, z = graph.returns
    assert sorted(sorted(one) for one in sums) == sorted([sorted([u, y]), [m], [z]])
    assert all(maker < op for op in range(graph.num_ops) for maker in graph.value_op[graph.operands(op)])


def test_all_reduces_are_joined_where_joining_others_has_turned_their_order():
    """Two pairs of two types, each of whose second sums read the other's first.

    One pair is joined, and the others then cannot be.
    """
    kind, wide = tensor((4, 8)), "tensor<4x8xf64>"

    def total(value, element, zero):
        types = f"(tensor<4x8x{element}>, tensor<{element}>) -> tensor<8x{element}>"
        return f"stablehlo.reduce({value} init: {zero}) applies stablehlo.add across dimensions = [0] : {types}"

    body = f"""%o = stablehlo.constant dense<0.0> : tensor<f32>
      %n = stablehlo.constant dense<0.0> : tensor<f64>
      %a = {total("%l", "f64", "%n")}
      %c = stablehlo.convert %a : (tensor<8xf64>) -> tensor<8xf32>
      %b = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<8xf32>) -> {kind}
      %p = stablehlo.multiply %x, %b : {kind}
      %y = {total("%p", "f32", "%o")}
      %d = {total("%x", "f32", "%o")}
      %e = stablehlo.convert %d : (tensor<8xf32>) -> tensor<8xf64>
      %f = stablehlo.broadcast_in_dim %e, dims = [1] : (tensor<8xf64>) -> {wide}
      %q = stablehlo.multiply %l, %f : {wide}
      %z = {total("%q", "f64", "%n")}"""
    arguments, results = {"x": kind, "l": wide}, {"y": tensor((8,)), "z": "tensor<8xf64>"}
    names, graph = local(body, arguments, results, dict.fromkeys((0, 1, 6, 7, 11, 12), S0), (R, R))
    assert sorted(len(graph.results(op)) for op, name in enumerate(names) if name == "all_reduce") == [1, 1, 2]
    assert all(maker < op for op in range(graph.num_ops) for maker in graph.value_op[graph.operands(op)])


def test_what_is_added_to_a_scatter_over_zeros_is_scattered_into():
    kind, rows = tensor((4, 8)), tensor((2, 8))
    scatter = SCATTER.format(into="%z", at="%i", what="%u", kind=kind, rows=rows)
    body = f"%z = stablehlo.constant dense<0.0> : {kind}\n%s = {scatter}\n%y = stablehlo.add %x, %s : {kind}"
    found, graph = local(body, {"x": kind, "i": "tensor<2x1xi32>", "u": rows}, {"y": kind}, {}, (R,))
    assert found == ["constant", "transpose", COPIED_UPDATE.removeprefix("stablehlo.")]
    assert graph.operands(2).tolist() == [0, 1, graph.results(1).start], "what is scattered is copied"


def test_what_is_transposed_back_is_what_it_was():
    kind, turned, back = tensor((4, 2, 8)), tensor((8, 4, 2)), tensor((2, 8, 4))
    body = f"""%t = stablehlo.transpose %x, dims = [2, 0, 1] : ({kind}) -> {turned}
      %b = stablehlo.transpose %t, dims = [1, 2, 0] : ({turned}) -> {kind}
      %o = stablehlo.transpose %t, dims = [2, 0, 1] : ({turned}) -> {back}
      %y = stablehlo.negate %b : {kind}
      %z = stablehlo.negate %o : {back}"""
    names, graph = local(body, {"x": kind}, {"y": kind, "z": back}, {}, (R, R))
    assert names == ["transpose", "transpose", "negate", "negate"]
    assert graph.operands(2).tolist() == [0]


def product(left, right, dims, result):
    body = f"%z = stablehlo.dot_general %a, %b, {dims} : ({tensor(left)}, {tensor(right)}) -> {tensor(result)}"
    return class_of(
        function(body, {"a": tensor(left), "b": tensor(right)}, {"z": tensor(result)}), "stablehlo.dot_general"
    )


@pytest.mark.parametrize(
    ("left", "right", "dims", "result", "orders"),
    [
        ((4, 6), (8, 6), "contracting_dims = [1] x [1]", (4, 8), (None, None)),
        ((6, 4), (6, 8), "contracting_dims = [0] x [0]", (4, 8), (None, None)),
        ((2, 4, 6), (6, 8), "contracting_dims = [2] x [0]", (2, 4, 8), ("view", None)),
        ((2, 4, 6), (2, 4, 8), "contracting_dims = [0, 1] x [0, 1]", (6, 8), ((2, 0, 1), "view")),
        ((2, 4, 6), (4, 2, 6), "batching_dims = [0] x [1], contracting_dims = [2] x [2]", (2, 4, 4), (None, (1, 0, 2))),
        ((1, 4, 6), (1, 8, 6), "batching_dims = [0] x [0], contracting_dims = [2] x [2]", (1, 4, 8), ("view", (2, 1))),
    ],
)
def test_how_operands_of_products_are_arranged(left, right, dims, result, orders):
    """Matrices are read in either order.

    Others are made matrices, left ones with what is summed last, right ones with it first.
    """
    cls = product(left, right, dims, result)
    assert (arranged(cls, 0, left), arranged(cls, 1, right)) == orders


# The order


def times(body, arguments, results):
    """When ops of a device's program run, by name, in each order that there may be; names are those of the results."""
    graph = program_of(function(body, arguments, results)).graph
    made = {name: graph.value_op[value] for name, value in zip(results, graph.returns, strict=True)}
    return [{name: plan.start[op] for name, op in made.items()} for plan in schedules_fused(graph, fuse(graph))]


@pytest.mark.parametrize(("first", "orders"), [("%x", 2), ("%p", 1)])
def test_a_second_order_is_there_where_it_is_close_which_result_comes_first(first, orders):
    """What two products need comes to the cap, all that was visited, with nothing to spare.

    It does not if they share a third.
    """
    kind = tensor((8, 8))
    product = f"stablehlo.dot_general {{}}, {{}}, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}"
    body = f"""%p = {product.format("%x", "%x")}
      %a = {product.format(first, "%x")}
      %b = {product.format(first.replace("x", "v"), "%v")}
      %y = {product.format("%a", "%b")}
      %z = {product.format("%v", "%x")}"""
    found = times(body, {"x": kind, "v": kind}, {"y": kind, "z": kind})
    assert [one["y"] < one["z"] for one in found] == [True, False][:orders]


def test_what_is_computed_inside_is_read_behind_the_other_operands():
    """Of a + b + c the last comes first, and its cap, all that was visited by then, is the least.

    So it is made last.
    """
    kind = tensor((8, 8))
    product = f"stablehlo.dot_general {{}}, {{}}, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}"
    body = f"%p = {product.format('%x', '%x')}\n"
    for name in "abc":
        body += f"""%q{name} = {product.format("%p", f"%{name}0")}
          %r{name} = {product.format(f"%{name}0", "%p")}
          %{name} = {product.format(f"%q{name}", f"%r{name}")}\n"""
    body += f"%s = stablehlo.add %a, %b : {kind}\n%y = stablehlo.add %s, %c : {kind}"
    graph = program_of(function(body, dict.fromkeys(("x", "a0", "b0", "c0"), kind), {"y": kind})).graph
    start = schedules_fused(graph, fuse(graph))[0].start
    a, b, c = (start[3 * number] for number in (1, 2, 3))
    assert a < b < c


def test_what_arguments_take_does_not_count_in_the_order():
    """Of two results, that comes first for which more is computed, not that which reads the larger argument."""
    kind, tall = tensor((8, 8)), tensor((64, 8))
    product = f"contracting_dims = [0] x [0] : ({kind}, {kind}) -> {kind}"
    body = f"""%p = stablehlo.dot_general %x, %x, {product}
      %y = stablehlo.dot_general %w, %w, {product.replace(kind, tall, 2)}
      %z = stablehlo.dot_general %p, %v, {product}"""
    found = times(body, {"w": tall, "x": kind, "v": kind}, {"y": kind, "z": kind})[0]
    assert found["z"] < found["y"]


def test_each_result_of_a_loop_is_a_way_to_it():
    """A sum of three results of a loop comes before what reads a product on two ways and has larger operands."""
    kind, count = tensor((8, 8)), "tensor<i32>"
    product = f"contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}"
    body = f"""%o = stablehlo.constant dense<0> : {count}
      %n = stablehlo.constant dense<3> : {count}
      %e:4 = stablehlo.while(%i = %o, %a = %x, %b = %x, %c = %x) : {count}, {kind}, {kind}, {kind} cond {{
        %more = stablehlo.compare LT, %i, %n : ({count}, {count}) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        %r = stablehlo.tanh %a : {kind}
        %s = stablehlo.negate %b : {kind}
        %t = stablehlo.cosine %c : {kind}
        stablehlo.return %i, %r, %s, %t : {count}, {kind}, {kind}, {kind}
      }}
      %d = stablehlo.add %e#1, %e#2 : {kind}
      %z = stablehlo.add %d, %e#3 : {kind}
      %p = stablehlo.dot_general %x, %v, {product}
      %f = stablehlo.dot_general %p, %x, {product}
      %g = stablehlo.dot_general %p, %v, {product}
      %y = stablehlo.dot_general %f, %g, {product}"""
    found = times(body, {"x": kind, "v": kind}, {"y": kind, "z": kind})[0]
    assert found["z"] < found["y"]


def test_a_returned_number_is_computed_where_all_that_it_needs_is_there():
    kind, number = tensor((8, 8)), tensor(())
    total = (
        f"stablehlo.reduce(%{{}} init: %o) applies stablehlo.add across dimensions = [0, 1] "
        f": ({kind}, {number}) -> {number}"
    )
    body = f"""%o = stablehlo.constant dense<0.0> : {number}
      %a = {total.format("x")}
      %b = {total.format("v")}
      %y = stablehlo.add %a, %b : {number}"""
    for found in times(body, {"x": kind, "v": kind}, {"y": number, "a": number, "b": number}):
        assert found["y"] > max(found["a"], found["b"])


@pytest.mark.parametrize(("other", "lies"), [("%c", True), ("%x", False)])
def test_what_is_computed_of_products_alone_is_computed_as_they_are(other, lies):
    """As a matrix the gradient of a ReLU is there once for the products that read it.

    What reads anything else is computed in each.
    """
    kind, weight = tensor((4, 16, 16)), tensor((16, 16))
    product = f"stablehlo.dot_general {{}}, %w, contracting_dims = [2] x [0] : ({kind}, {weight}) -> {kind}"
    body = f"""%o = stablehlo.constant dense<0.0> : tensor<f32>
      %c = stablehlo.broadcast_in_dim %o, dims = [] : (tensor<f32>) -> {kind}
      %p = {product.format("%x")}
      %g = stablehlo.compare GT, %p, %c : ({kind}, {kind}) -> {tensor((4, 16, 16), "i1")}
      %d = {product.format("%v")}
      %s = stablehlo.select %g, %d, {other} : {tensor((4, 16, 16), "i1")}, {kind}
      %y = {product.format("%s")}
      %z = stablehlo.dot_general %s, %x, contracting_dims = [0, 1] x [0, 1] : ({kind}, {kind}) -> {weight}"""
    names, graph = local(body, {"x": kind, "v": kind, "w": weight}, {"y": kind, "z": weight}, {}, (R, R))
    assert fuse(graph).in_memory[graph.results(names.index("select")).start] == lies
