// RUN: rhino-opt --rhino-split-stages %s | filecheck %s
// A sum over micro-batches of what two ranks make, as the gradient of a weight that is used in both stages, is added up on each of them from
// zeros, and joined after the loop, so that nothing of it crosses in the loop.

// CHECK: {gives = ["sum 1"], phase = "setup", program = @setup_0, reads = [], stage = 0 : i64}
// CHECK-SAME: {gives = ["sum 2"], phase = "setup", program = @setup_0, reads = [], stage = 1 : i64}
// CHECK-SAME: {gives = ["sum 2", "backward_1.0"], phase = "backward", program = @backward_1, reads = ["forward_0.0", "sum 2"], stage = 1 : i64}
// CHECK-SAME: {gives = ["sum 1"], phase = "backward", program = @backward_0, reads = ["backward_1.0", "sum 1"], stage = 0 : i64}
// CHECK-SAME: {gives = ["apply_0.0"], phase = "apply", program = @apply_0, reads = ["sum 1", "sum 2", "w"], stage = 0 : i64}
// CHECK: func.func private @backward_1(%[[H:.*]]: tensor<4xf32>, %[[SUM:.*]]: tensor<4xf32> {tf.aliasing_output = 0 : i32})
// CHECK-NEXT: %[[OWN:.*]] = stablehlo.tanh %[[H]]
// CHECK-NEXT: %[[NEW:.*]] = stablehlo.add %[[SUM]], %[[OWN]]
// CHECK-NEXT: return %[[NEW]], %[[OWN]]
// CHECK: func.func private @backward_0(%[[G:.*]]: tensor<4xf32>, %[[MINE:.*]]: tensor<4xf32> {tf.aliasing_output = 0 : i32})
// CHECK-NEXT: %[[BACK:.*]] = stablehlo.negate %[[G]]
// CHECK-NEXT: stablehlo.add %[[MINE]], %[[BACK]]
// CHECK: func.func private @apply_0(%[[ONE:.*]]: tensor<4xf32>, %[[OTHER:.*]]: tensor<4xf32>, %[[OLD:.*]]: tensor<4xf32>
// CHECK-NEXT: %[[TOTAL:.*]] = stablehlo.add %[[ONE]], %[[OTHER]]
// CHECK-NEXT: stablehlo.subtract %[[OLD]], %[[TOTAL]]

module attributes {rhino.num_stages = 2 : i64} {
func.func @main(%w: tensor<4xf32> {tf.aliasing_output = 0 : i32} loc("w")) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %dw0 = stablehlo.constant dense<0.0> : tensor<4xf32>
  %end:2 = stablehlo.while(%i = %zero, %dw = %dw0) : tensor<i32>, tensor<4xf32> attributes {rhino.micro_batches = 2 : i64} cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.exponential %w {rhino.virtual_stage = 0 : i64} : tensor<4xf32>
    %g = stablehlo.tanh %h {rhino.virtual_stage = 1 : i64} : tensor<4xf32>
    %back = stablehlo.negate %g {rhino.virtual_stage = 2 : i64} : tensor<4xf32>
    %both = stablehlo.add %g, %back {rhino.virtual_stage = 2 : i64} : tensor<4xf32>
    %new_dw = stablehlo.add %dw, %both {rhino.virtual_stage = 2 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %new_dw : tensor<i32>, tensor<4xf32>
  }
  %new_w = stablehlo.subtract %w, %end#1 {rhino.stage = 0 : i64} : tensor<4xf32>
  return %new_w : tensor<4xf32>
}
}
