// RUN: rhino-opt --rhino-normalize --rhino-annotate-candidates --cluster=cpu4 --mesh=2 %s | filecheck %s
// A convolution is split along its batch, its features, and rows: windows reach into the neighbour's block, which sends what they read. This one
// is the gradient of a kernel: blocks of rows of both images (j and k) give sums, while its own three rows (n and o) are no two equal blocks.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.convolution
// CHECK-SAME: rhino.candidates = ["replicate", "i", "j", "k", "l", "m", "partial 0", "partial 1"]
func.func @main(%x: tensor<2x8x8x4xf32>, %g: tensor<2x8x8x6xf32>) -> tensor<3x3x4x6xf32> {
  %w = stablehlo.convolution(%x, %g) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x8x4xf32>, tensor<2x8x8x6xf32>) -> tensor<3x3x4x6xf32>
  return %w : tensor<3x3x4x6xf32>
}
