// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// CHLO becomes StableHLO, what is computed twice is computed once, and what nobody reads is gone.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.*]]: tensor<4xf32>)
// CHECK-NEXT: %[[SINE:.*]] = stablehlo.sine %[[X]]
// CHECK-NEXT: %[[TWICE:.*]] = stablehlo.add %[[SINE]], %[[SINE]]
// CHECK-NEXT: return %[[TWICE]]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %dead = stablehlo.cosine %x : tensor<4xf32>
  %a = stablehlo.sine %x : tensor<4xf32>
  %b = stablehlo.sine %x : tensor<4xf32>
  %c = chlo.broadcast_add %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %c : tensor<4xf32>
}
