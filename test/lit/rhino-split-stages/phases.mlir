// RUN: rhino-opt --rhino-split-stages %s | filecheck %s
// A loop over micro-batches whose body is marked with virtual stages becomes a setup, a forward and two backwards (the last stage does both
// at once), and an apply in each stage. Each reads by name what it needs; constants and the counter are computed where they are read, the
// counter from the number of the micro-batch. The two applies are alike, and one program.

// CHECK: rhino.micro_batches = 2 : i64, rhino.num_stages = 2 : i64
// CHECK-SAME: {gives = ["sum 1", "setup_0.0"], phase = "setup", program = @setup_0, reads = ["x"], stage = 0 : i64}
// CHECK-SAME: {gives = ["sum 2"], phase = "setup", program = @setup_1, reads = [], stage = 1 : i64}
// CHECK-SAME: {gives = ["forward_0.0"], phase = "forward", program = @forward_0, reads = ["setup_0.0", "micro-batch", "u"], stage = 0 : i64}
// CHECK-SAME: {gives = ["sum 2", "backward_1.0"], phase = "backward", program = @backward_1, reads = ["forward_0.0", "v", "sum 2"], stage = 1 : i64}
// CHECK-SAME: {gives = ["sum 1"], phase = "backward", program = @backward_0, reads = ["backward_1.0", "sum 1"], stage = 0 : i64}
// CHECK-SAME: {gives = ["apply_0.0"], phase = "apply", program = @apply_0, reads = ["u", "sum 1"], stage = 0 : i64}
// CHECK-SAME: {gives = ["apply_1.0"], phase = "apply", program = @apply_0, reads = ["v", "sum 2"], stage = 1 : i64}
// CHECK-SAME: rhino.results = ["apply_0.0", "apply_1.0"]
// CHECK: func.func private @setup_0(%[[X:.*]]: tensor<8x4xf32>) -> (tensor<4x4xf32>, tensor<2x4x4xf32>)
// CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT: %[[ROWS:.*]] = stablehlo.reshape %[[X]]
// CHECK-NEXT: return %[[ZERO]], %[[ROWS]]
// CHECK: func.func private @forward_0(%[[ROWS:.*]]: tensor<2x4x4xf32>, %[[I:.*]]: tensor<i32>, %[[U:.*]]: tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT: %[[FIRST:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK-NEXT: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[ROWS]], %[[I]], %[[FIRST]], %[[FIRST]]
// CHECK-NEXT: %[[MINE:.*]] = stablehlo.reshape %[[SLICE]]
// CHECK-NEXT: %[[H:.*]] = stablehlo.dot_general %[[MINE]], %[[U]]
// CHECK-NEXT: return %[[H]]
// CHECK: func.func private @backward_1(%[[H:.*]]: tensor<4x4xf32>, %[[V:.*]]: tensor<4x4xf32>, %[[SUM:.*]]: tensor<4x4xf32> {tf.aliasing_output = 0 : i32})
// CHECK-NEXT: %[[G:.*]] = stablehlo.multiply %[[H]], %[[V]]
// CHECK-NEXT: %[[NEW:.*]] = stablehlo.add %[[SUM]], %[[H]]
// CHECK-NEXT: return %[[NEW]], %[[G]]
// CHECK: func.func private @backward_0(%[[G:.*]]: tensor<4x4xf32>, %[[SUM:.*]]: tensor<4x4xf32> {tf.aliasing_output = 0 : i32})
// CHECK-NEXT: %[[BACK:.*]] = stablehlo.tanh %[[G]]
// CHECK-NEXT: stablehlo.add %[[SUM]], %[[BACK]]
// CHECK: func.func private @apply_0(%[[OLD:.*]]: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %[[SUM:.*]]: tensor<4x4xf32>)
// CHECK-NEXT: stablehlo.subtract %[[OLD]], %[[SUM]]
// CHECK: func.func private @step(tensor<8x4xf32> {rhino.name = "x"}, tensor<4x4xf32> {rhino.name = "u", tf.aliasing_output = 0 : i32},

module attributes {rhino.num_stages = 2 : i64} {
func.func @main(%x: tensor<8x4xf32> loc("x"), %u: tensor<4x4xf32> {tf.aliasing_output = 0 : i32} loc("u"),
    %v: tensor<4x4xf32> {tf.aliasing_output = 1 : i32} loc("v")) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %du0 = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %dv0 = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %rows = stablehlo.reshape %x : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
  %end:3 = stablehlo.while(%i = %zero, %du = %du0, %dv = %dv0) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
    attributes {rhino.micro_batches = 2 : i64} cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %slice = stablehlo.dynamic_slice %rows, %i, %zero, %zero, sizes = [1, 4, 4] {rhino.virtual_stage = 0 : i64}
        : (tensor<2x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %mine = stablehlo.reshape %slice {rhino.virtual_stage = 0 : i64} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %h = stablehlo.dot_general %mine, %u, contracting_dims = [1] x [0] {rhino.virtual_stage = 0 : i64}
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %g = stablehlo.multiply %h, %v {rhino.virtual_stage = 1 : i64} : tensor<4x4xf32>
    %new_dv = stablehlo.add %dv, %h {rhino.virtual_stage = 1 : i64} : tensor<4x4xf32>
    %back = stablehlo.tanh %g {rhino.virtual_stage = 2 : i64} : tensor<4x4xf32>
    %new_du = stablehlo.add %du, %back {rhino.virtual_stage = 2 : i64} : tensor<4x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %new_du, %new_dv : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  %new_u = stablehlo.subtract %u, %end#1 {rhino.stage = 0 : i64} : tensor<4x4xf32>
  %new_v = stablehlo.subtract %v, %end#2 {rhino.stage = 1 : i64} : tensor<4x4xf32>
  return %new_u, %new_v : tensor<4x4xf32>, tensor<4x4xf32>
}
}
