// RUN: rhino-opt --rhino-split-stages=split-backward=true %s | filecheck %s
// A backward that gives something to another stage and has more to do is cut in two: what the other stage waits for, and the rest.

// CHECK: {gives = ["input_gradient_1.0", "input_gradient_1.1"], phase = "input-gradient", program = @input_gradient_1, reads = ["h", "v"], stage = 1 : i64}
// CHECK-SAME: {gives = ["sum 2"], phase = "weight-gradient", program = @weight_gradient_1, reads = ["input_gradient_1.0", "sum 2"], stage = 1 : i64}
// CHECK-SAME: {gives = ["sum 1"], phase = "backward", program = @backward_0, reads = ["sum 1", "input_gradient_1.1"], stage = 0 : i64}
// CHECK: func.func private @input_gradient_1(%[[H:.*]]: tensor<4xf32>, %[[V:.*]]: tensor<4xf32>)
// CHECK-NEXT: %[[E:.*]] = stablehlo.tanh %[[H]]
// CHECK-NEXT: %[[G:.*]] = stablehlo.multiply %[[E]], %[[V]]
// CHECK-NEXT: return %[[E]], %[[G]]
// CHECK: func.func private @weight_gradient_1(%[[E:.*]]: tensor<4xf32>, %[[SUM:.*]]: tensor<4xf32> {tf.aliasing_output = 0 : i32})
// CHECK-NEXT: %[[DV:.*]] = stablehlo.negate %[[E]]
// CHECK-NEXT: stablehlo.add %[[SUM]], %[[DV]]

module attributes {rhino.num_stages = 2 : i64} {
func.func @main(%h: tensor<4xf32> loc("h"), %v: tensor<4xf32> loc("v")) -> (tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %du0 = stablehlo.constant dense<0.0> : tensor<4xf32>
  %dv0 = stablehlo.constant dense<0.0> : tensor<4xf32>
  %end:3 = stablehlo.while(%i = %zero, %du = %du0, %dv = %dv0) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    attributes {rhino.micro_batches = 2 : i64} cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %e = stablehlo.tanh %h {rhino.virtual_stage = 1 : i64} : tensor<4xf32>
    %d = stablehlo.negate %e {rhino.virtual_stage = 1 : i64} : tensor<4xf32>
    %new_dv = stablehlo.add %dv, %d {rhino.virtual_stage = 1 : i64} : tensor<4xf32>
    %g = stablehlo.multiply %e, %v {rhino.virtual_stage = 1 : i64} : tensor<4xf32>
    %new_du = stablehlo.add %du, %g {rhino.virtual_stage = 2 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %new_du, %new_dv : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %end#1, %end#2 : tensor<4xf32>, tensor<4xf32>
}
}
