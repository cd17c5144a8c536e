// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// RUN: rhino-opt --rhino-normalize=boundaries=true %s | filecheck %s --check-prefix=KEPT
// A boundary of stages is the identity, or a barrier with the way of its value where it is kept; also one in a function that is called.

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[SINE:.*]] = stablehlo.sine
// CHECK-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[SINE]]
// CHECK-NEXT: return %[[TANH]]
// KEPT-LABEL: func.func @main(
// KEPT-NEXT: %[[SINE:.*]] = stablehlo.sine
// KEPT-NEXT: %[[CUT:.*]] = stablehlo.optimization_barrier {rhino.stage_boundary = "forward"} %[[SINE]]
// KEPT-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[CUT]]
// KEPT-NEXT: %[[BACK:.*]] = stablehlo.optimization_barrier {rhino.stage_boundary = "back"} %[[TANH]]
// KEPT-NEXT: return %[[BACK]]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %s = stablehlo.sine %x : tensor<4xf32>
  %c = call @cut(%s) : (tensor<4xf32>) -> tensor<4xf32>
  %t = stablehlo.tanh %c : tensor<4xf32>
  %b = stablehlo.composite "rhino.stage_boundary" %t {composite_attributes = {way = "back"}, decomposition = @same} : (tensor<4xf32>) -> tensor<4xf32>
  return %b : tensor<4xf32>
}
func.func private @cut(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.composite "rhino.stage_boundary" %x {composite_attributes = {way = "forward"}, decomposition = @same} : (tensor<4xf32>) -> tensor<4xf32>
  return %c : tensor<4xf32>
}
func.func private @same(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
