// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// A sum that starts from something else than zero starts from zero, so that its parts can be summed apart; what it started from is added.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<8x16xf32>, %[[I:[a-z0-9]+]]: tensor<f32>
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK: %[[REPEATED:.*]] = stablehlo.broadcast_in_dim %[[I]], dims = []
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.reduce(%[[X]] init: %[[ZERO]]) applies stablehlo.add across dimensions = [1]
// CHECK-NEXT: %[[JOINED:.*]] = stablehlo.add %[[SUM]], %[[REPEATED]] : tensor<8xf32>
// CHECK-NEXT: return %[[JOINED]]
func.func @main(%x: tensor<8x16xf32>, %i: tensor<f32>) -> tensor<8xf32> {
  %0 = stablehlo.reduce(%x init: %i) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
