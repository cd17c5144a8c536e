// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// Nothing computes a tensor without elements, and nothing is joined to one. What a pad makes of one is what it pads
// with, and an update by one changes nothing.

// CHECK-LABEL: func.func public @main
// CHECK-NOT:     stablehlo.slice
// CHECK-NOT:     stablehlo.concatenate
// CHECK-NOT:     stablehlo.pad
// CHECK-NOT:     stablehlo.dynamic_update_slice
// CHECK:         %[[ALL:.*]] = stablehlo.broadcast_in_dim %arg1
// CHECK:         %[[NONE:.*]] = stablehlo.add %arg0, %[[ALL]]
// CHECK:         %[[START:.*]] = stablehlo.broadcast_in_dim %arg1
// CHECK:         return %[[NONE]], %[[START]]
func.func public @main(%x: tensor<4x2xf32>, %p: tensor<f32>) -> (tensor<4x2xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.slice %x [0:4, 0:0] : (tensor<4x2xf32>) -> tensor<4x0xf32>
  %twice = stablehlo.add %none, %none : tensor<4x0xf32>
  %joined = stablehlo.concatenate %x, %twice, dim = 1 : (tensor<4x2xf32>, tensor<4x0xf32>) -> tensor<4x2xf32>
  %padded = stablehlo.pad %twice, %p, low = [0, 1], high = [0, 1], interior = [0, 0]
      : (tensor<4x0xf32>, tensor<f32>) -> tensor<4x2xf32>
  %updated = stablehlo.dynamic_update_slice %joined, %twice, %zero, %zero
      : (tensor<4x2xf32>, tensor<4x0xf32>, tensor<i32>, tensor<i32>) -> tensor<4x2xf32>
  %sum = stablehlo.add %updated, %padded : tensor<4x2xf32>
  %start = stablehlo.reduce(%twice init: %p) applies stablehlo.maximum across dimensions = [1]
      : (tensor<4x0xf32>, tensor<f32>) -> tensor<4xf32>
  return %sum, %start : tensor<4x2xf32>, tensor<4xf32>
}
