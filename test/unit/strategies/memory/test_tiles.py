"""Bytes of tensors in tiles, and what lies row by row."""

import pytest
from snippets import function, program_of, tensor

from rhino.ir.graph.graph import TensorType
from rhino.strategies.cost.target import TARGETS
from rhino.strategies.memory.peak import Lives
from rhino.strategies.memory.tiles import compact_bytes, ends_for_convolutions, row_bytes

TILE = (8, 128)


@pytest.mark.parametrize(
    ("shape", "dims", "compact", "rows"),
    [
        ((8, 128), None, 4096, 4096),
        ((65536, 8), None, 65536 * 8 * 4, 65536 * 128 * 4),  # columns may lie along rows
        ((512, 512, 16), None, 512 * 512 * 16 * 4, 512 * 512 * 128 * 4),
        ((16, 1), None, 512 * 1, 64),  # no rows
        ((32, 64, 64, 64), (0, 3), 32 * 64 * 64 * 128 * 4, 32 * 64 * 64 * 128 * 4),  # 64 features on 128 lanes
        ((128, 64, 64, 3), (0, 3), 128 * 64 * 64 * 4 * 4, 128 * 64 * 64 * 128 * 4),  # the batch on the lanes
    ],
)
def test_bytes_of_tensors_in_tiles(shape, dims, compact, rows):
    size = 4
    for extent in shape:
        size *= extent
    kind = TensorType(shape, "f32", 4)
    assert (kind.num_bytes, compact_bytes(kind, TILE, dims), row_bytes(kind, TILE)) == (size, compact, rows)
    assert compact_bytes(kind, (1, 1), dims) == row_bytes(kind, (1, 1)) == size


TABLE, PLACES, ROWS = tensor((1024, 8)), tensor((64, 1), "i32"), tensor((64, 8))
LOOKED_UP = f"""%r = "stablehlo.gather"(%t, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}}>
      : ({TABLE}, {PLACES}) -> {ROWS}
    %y = stablehlo.tanh %r : {ROWS}
"""
ADDED = f"""%u = "stablehlo.scatter"(%t, %i, %r) <{{
      scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }}) : ({TABLE}, {PLACES}, {ROWS}) -> {TABLE}
"""


@pytest.mark.parametrize("target", ["tpu", "gpu"])
def test_tables_are_looked_up_and_added_up_row_by_row(target):
    """Beside it as it lies, a table is copied so, and so are its rows and its update."""
    padded = target == "tpu"
    looked_up = program_of(function(LOOKED_UP, {"t": TABLE, "i": PLACES}, {"y": ROWS})).graph
    sizes = [size for (size, _, _), _ in Lives(looked_up, TARGETS[target]).spans()]
    assert (1024 * 128 * 4 in sizes) == padded
    added = program_of(function(ADDED, {"t": TABLE, "i": PLACES, "r": ROWS}, {"u": TABLE})).graph
    lives = Lives(added, TARGETS[target])
    assert lives.num_bytes[added.returns[0]] == 1024 * (128 if padded else 8) * 4


def test_what_a_convolution_reads_and_gives_ends_with_batch_and_feature():
    image, kernel, out = tensor((4, 9, 9, 3)), tensor((3, 3, 3, 16)), tensor((4, 9, 9, 16))
    body = f"""%y = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{pad = [[1, 1], [1, 1]]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : ({image}, {kernel}) -> {out}"""
    graph = program_of(function(body, {"x": image, "k": kernel}, {"y": out})).graph
    assert ends_for_convolutions(graph) == {0: (0, 3), 1: (2, 3), 2: (0, 3)}
