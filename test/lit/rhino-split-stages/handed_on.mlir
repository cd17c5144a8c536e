// RUN: rhino-opt --rhino-split-stages %s | filecheck %s
// A backward pass makes again what is cheap: of a product, its tanh and a comparison, the product alone is handed on, as a product's operand is
// that is read from memory. What lies behind a barrier is not made from before it, nor is what reads a sum over micro-batches: that is
// another by then.

// CHECK: gives = ["sum 2", "forward_0.0", "forward_0.1", "forward_0.2", "forward_0.3"], phase = "forward", program = @forward_0
// CHECK: reads = ["forward_0.1", "backward_1.0", "forward_0.0", "forward_0.2", "forward_0.3", "sum 1"]
// CHECK: func.func private @forward_0(
// CHECK: %[[DOT:.*]] = stablehlo.dot_general
// CHECK-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[DOT]]
// CHECK: %[[KEPT:.*]] = stablehlo.select %{{.*}}, %[[TANH]], %[[DOT]]
// CHECK-NEXT: %[[FENCED:.*]] = stablehlo.optimization_barrier %[[TANH]]
// CHECK-NEXT: %[[BEHIND:.*]] = stablehlo.sine %[[FENCED]]
// CHECK-NEXT: %[[SCALED:.*]] = stablehlo.multiply %[[DOT]], %[[SEEN:.*]] :
// CHECK-NEXT: %[[MORE:.*]] = stablehlo.add %[[SEEN]], %[[DOT]]
// CHECK-NEXT: return %[[MORE]], %[[KEPT]], %[[DOT]], %[[BEHIND]], %[[SCALED]] :
// CHECK: func.func private @backward_0(%[[DOT:[a-z0-9]*]]: tensor<4x4xf32>, %[[G:[a-z0-9]*]]: tensor<4x4xf32>, %[[KEPT:[a-z0-9]*]]: tensor<4x4xf32>,
// CHECK-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[DOT]]
// CHECK-NEXT: stablehlo.multiply %[[TANH]], %[[G]]
// CHECK: stablehlo.compare GT, %[[DOT]]
// CHECK: stablehlo.dot_general %[[KEPT]]

module attributes {rhino.num_stages = 2 : i64} {
func.func @main(%x: tensor<2x4x4xf32> loc("x"), %u: tensor<4x4xf32> {tf.aliasing_output = 0 : i32} loc("u"),
    %seen: tensor<4x4xf32> {tf.aliasing_output = 1 : i32} loc("seen")) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %du0 = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %end:3 = stablehlo.while(%i = %zero, %du = %du0, %sum = %seen) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
    attributes {rhino.micro_batches = 2 : i64} cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %slice = stablehlo.dynamic_slice %x, %i, %zero, %zero, sizes = [1, 4, 4] {rhino.virtual_stage = 0 : i64}
        : (tensor<2x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %mine = stablehlo.reshape %slice {rhino.virtual_stage = 0 : i64} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %limit = stablehlo.constant dense<0.5> : tensor<4x4xf32>
    %dot = stablehlo.dot_general %mine, %u, contracting_dims = [1] x [0]
        {rhino.virtual_stage = 0 : i64}
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %tanh = stablehlo.tanh %dot {rhino.virtual_stage = 0 : i64} : tensor<4x4xf32>
    %mask = stablehlo.compare GT, %dot, %limit {rhino.virtual_stage = 0 : i64}
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xi1>
    %kept = stablehlo.select %mask, %tanh, %dot {rhino.virtual_stage = 0 : i64}
        : tensor<4x4xi1>, tensor<4x4xf32>
    %fenced = "stablehlo.optimization_barrier"(%tanh) {rhino.virtual_stage = 0 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %behind = stablehlo.sine %fenced {rhino.virtual_stage = 0 : i64} : tensor<4x4xf32>
    %scaled = stablehlo.multiply %dot, %sum {rhino.virtual_stage = 0 : i64} : tensor<4x4xf32>
    %new_sum = stablehlo.add %sum, %dot {rhino.virtual_stage = 0 : i64} : tensor<4x4xf32>
    %g = stablehlo.exponential %kept {rhino.virtual_stage = 1 : i64} : tensor<4x4xf32>
    %b1 = stablehlo.multiply %tanh, %g {rhino.virtual_stage = 2 : i64} : tensor<4x4xf32>
    %b2 = stablehlo.select %mask, %b1, %g {rhino.virtual_stage = 2 : i64} : tensor<4x4xi1>, tensor<4x4xf32>
    %b3 = stablehlo.dot_general %kept, %b2, contracting_dims = [1] x [0] {rhino.virtual_stage = 2 : i64}
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b4 = stablehlo.add %b3, %behind {rhino.virtual_stage = 2 : i64} : tensor<4x4xf32>
    %b5 = stablehlo.add %b4, %scaled {rhino.virtual_stage = 2 : i64} : tensor<4x4xf32>
    %new_du = stablehlo.add %du, %b5 {rhino.virtual_stage = 2 : i64} : tensor<4x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %new_du, %new_sum : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  %new_u = stablehlo.subtract %u, %end#1 {rhino.stage = 0 : i64} : tensor<4x4xf32>
  return %new_u, %end#2 : tensor<4x4xf32>, tensor<4x4xf32>
}
}
