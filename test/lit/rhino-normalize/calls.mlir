// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// Calls are inlined, also calls in callees and in loop bodies, and the functions that nobody calls any more are gone.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.*]]: tensor<4xf32>)
// CHECK-NEXT: %[[SINE:.*]] = stablehlo.sine %[[X]]
// CHECK-NEXT: %[[TWICE:.*]] = stablehlo.add %[[SINE]], %[[SINE]]
// CHECK-NEXT: return %[[TWICE]]
// CHECK-NOT: func.func
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = call @outer(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @outer(%x: tensor<4xf32>) -> tensor<4xf32> {
  %s = call @inner(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %t = call @inner(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %y = stablehlo.add %s, %t : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @inner(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
