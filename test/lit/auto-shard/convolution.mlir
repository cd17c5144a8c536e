// RUN: rhino-opt --rhino-normalize --rhino-annotate-candidates --cluster=cpu4 --mesh=2 %s | filecheck %s
// A convolution is split along its batch and its features, never along a window: windows reach into the neighbour's block. This one is the
// gradient of a kernel, whose window dims (of size 8) Shardy's rule calls reductions.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.convolution
// CHECK-SAME: rhino.candidates = ["replicate", "i", "l", "m", "partial 0", "partial 1"]
func.func @main(%x: tensor<2x8x8x4xf32>, %g: tensor<2x8x8x6xf32>) -> tensor<3x3x4x6xf32> {
  %w = stablehlo.convolution(%x, %g) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x8x4xf32>, tensor<2x8x8x6xf32>) -> tensor<3x3x4x6xf32>
  return %w : tensor<3x3x4x6xf32>
}
