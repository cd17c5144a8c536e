// RUN: rhino-opt --rhino-annotate-work %s | filecheck %s
// A convolution multiplies and adds once for each element of a kernel's window and each output: 2 x (2 x 6 x 6 x 8) x (3 x 3 x 4).

// CHECK-LABEL: func.func @window(
// CHECK: stablehlo.convolution
// CHECK-SAME: rhino.work = {bytes = 5504 : i64, flops = 41472 : i64}
func.func @window(%x: tensor<2x8x8x4xf32>, %k: tensor<3x3x4x8xf32>) -> tensor<2x6x6x8xf32> {
  %y = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x8x4xf32>, tensor<3x3x4x8xf32>) -> tensor<2x6x6x8xf32>
  return %y : tensor<2x6x6x8xf32>
}
