// RUN: rhino-opt --rhino-annotate-work %s | filecheck %s
// Work is bytes of operands and results, and floating-point operations: 2 x 8 x 16 x 32 for the product, one for each element elsewhere.
// The rules that the pass reads are not left behind, and the mesh changes nothing.

// CHECK-LABEL: func.func @layer(
// CHECK-NEXT: %[[Y:.*]] = stablehlo.dot_general
// CHECK-SAME: contracting_dims = [1] x [0] {rhino.work = {bytes = 3584 : i64, flops = 8192 : i64}}
// CHECK-NEXT: %[[Z:.*]] = stablehlo.tanh %[[Y]] {rhino.work = {bytes = 2048 : i64, flops = 256 : i64}}
// CHECK-NEXT: return %[[Z]] : tensor<8x32xf32>
sdy.mesh @mesh = <["x"=4]>
func.func @layer(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x32xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %z = stablehlo.tanh %y : tensor<8x32xf32>
  return %z : tensor<8x32xf32>
}
