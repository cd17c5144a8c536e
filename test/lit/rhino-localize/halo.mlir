// RUN: rhino-opt --rhino-localize %s | filecheck %s
// RUN: rhino-run --verify %s | filecheck %s --check-prefix=SAME
// What a block reads of other devices comes by permutes: rows beside it for a window, the mirrored block for a reversal, the pieces that a
// slice has in other blocks, and the row before for a pad that shifts, which pads at the border of the tensor alone.

// SAME: agrees with the one-device program

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[IMAGE:.*]]: tensor<1x2x8x1xf32> {sdy{{.*}}, %[[KERNEL:.*]]: tensor<3x3x1x1xf32>, %[[ROWS:.*]]: tensor<2x2xf32> {sdy
// CHECK-NEXT: %[[LAST:.*]] = stablehlo.slice %[[IMAGE]] [0:1, 1:2, 0:8, 0:1]
// CHECK-NEXT: %[[BEFORE:.*]] = "stablehlo.collective_permute"(%[[LAST]]) <{{.*}} dense<[[0, 1], [1, 2], [2, 3]]>
// CHECK-NEXT: %[[FIRST:.*]] = stablehlo.slice %[[IMAGE]] [0:1, 0:1, 0:8, 0:1]
// CHECK-NEXT: %[[BEHIND:.*]] = "stablehlo.collective_permute"(%[[FIRST]]) <{{.*}} dense<[[1, 0], [2, 1], [3, 2]]>
// CHECK-NEXT: %[[RANGE:.*]] = stablehlo.concatenate %[[BEFORE]], %[[IMAGE]], %[[BEHIND]], dim = 1
// CHECK-NEXT: %[[CONV:.*]] = stablehlo.convolution(%[[RANGE]], %[[KERNEL]]) {{.*}}window = {pad = {{\[}}[0, 0], [1, 1]]}
// CHECK-NEXT: %[[MIRRORED:.*]] = "stablehlo.collective_permute"(%[[ROWS]]) <{{.*}} dense<[[3, 0], [2, 1], [1, 2], [0, 3]]>
// CHECK-NEXT: %[[REVERSED:.*]] = stablehlo.reverse %[[MIRRORED]], dims = [0]
// CHECK: %[[SECOND:.*]] = "stablehlo.collective_permute"(%{{.*}}) <{{.*}} dense<[[0, 1], [1, 3]]> {{.*}} (tensor<1x2xf32>)
// CHECK: %[[TOP:.*]] = "stablehlo.collective_permute"(%{{.*}}) <{{.*}} dense<[[0, 0], [1, 2]]> {{.*}} (tensor<1x2xf32>)
// CHECK: %[[HALF:.*]] = stablehlo.select %{{.*}}, %[[TOP]], %[[SECOND]]
// CHECK: %[[ROW:.*]] = "stablehlo.collective_permute"(%{{.*}}) <{{.*}} dense<[[0, 1], [1, 2], [2, 3]]> {{.*}} (tensor<1x2xf32>)
// CHECK: %[[MOVED:.*]] = stablehlo.concatenate %[[ROW]], %{{.*}}, dim = 0
// CHECK: %[[ONES:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
// CHECK: %[[SHIFTED:.*]] = stablehlo.select %{{.*}}, %[[MOVED]], %[[ONES]]
// CHECK: return %[[CONV]], %[[REVERSED]], %[[HALF]], %[[SHIFTED]]
sdy.mesh @mesh = <["x"=4]>
func.func @main(%image: tensor<1x8x8x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}, {}]>}, %kernel: tensor<3x3x1x1xf32>,
    %rows: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<1x8x8x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}, {}]>}, tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
        tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %conv = stablehlo.convolution(%image, %kernel) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}, {}]>]>}
    : (tensor<1x8x8x1xf32>, tensor<3x3x1x1xf32>) -> tensor<1x8x8x1xf32>
  %reversed = stablehlo.reverse %rows, dims = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<8x2xf32>
  %half = stablehlo.slice %rows [0:4, 0:2] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<8x2xf32>) -> tensor<4x2xf32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %shifted = stablehlo.pad %rows, %one, low = [1, 0], high = [-1, 0], interior = [0, 0]
    {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<8x2xf32>, tensor<f32>) -> tensor<8x2xf32>
  return %conv, %reversed, %half, %shifted : tensor<1x8x8x1xf32>, tensor<8x2xf32>, tensor<4x2xf32>, tensor<8x2xf32>
}
