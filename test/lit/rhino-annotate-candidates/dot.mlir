// RUN: rhino-opt --rhino-annotate-candidates=mesh=4 %s | filecheck %s
// A product can be split by rows, columns or its sum, and it is linear in each operand. A dim that the mesh does not divide is no
// candidate, nor is a partial sum where an op is not linear.

// CHECK-LABEL: func.func @layer(
// CHECK-NEXT: %[[Y:.*]] = stablehlo.dot_general
// CHECK-SAME: {rhino.candidates = ["replicate", "i", "j", "k", "partial 0", "partial 1"]}
// CHECK-NEXT: %[[Z:.*]] = stablehlo.tanh %[[Y]] {rhino.candidates = ["replicate", "i", "j"]}
// CHECK-NEXT: %[[ODD:.*]] = stablehlo.slice %[[Z]] [0:8, 0:30]
// CHECK-SAME: {rhino.candidates = ["replicate", "i", "partial 0"]}
// CHECK-NEXT: return %[[ODD]]
func.func @layer(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x30xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %z = stablehlo.tanh %y : tensor<8x32xf32>
  %odd = stablehlo.slice %z [0:8, 0:30] : (tensor<8x32xf32>) -> tensor<8x30xf32>
  return %odd : tensor<8x30xf32>
}
