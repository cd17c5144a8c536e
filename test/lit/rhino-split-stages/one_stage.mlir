// RUN: rhino-opt --rhino-split-stages %s | filecheck %s
// A step in one stage is one program, with its loop over micro-batches. An argument that nothing reads is none of the program's, and one
// that is handed back as it came neither: the step's result has its name. What takes over a buffer is counted among what the program gives.

// CHECK: module attributes {rhino.micro_batches = 2 : i64, rhino.num_stages = 1 : i64
// CHECK-SAME: rhino.parts = [{gives = ["step_0.1", "step_0.2"], phase = "step", program = @step_0, reads = ["x", "w"], stage = 0 : i64}]
// CHECK-SAME: rhino.results = ["table", "step_0.1", "step_0.2"]
// CHECK: func.func private @step(tensor<4xf32> {rhino.name = "unread"}, tensor<8x4xf32> {rhino.name = "x"},
// CHECK-SAME: tensor<4xf32> {rhino.name = "table", tf.aliasing_output = 0 : i32}, tensor<4xf32> {rhino.name = "w", tf.aliasing_output = 1 : i32})
// CHECK: func.func private @step_0(%[[X:.*]]: tensor<8x4xf32>, %[[W:.*]]: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<4xf32>, tensor<4xf32>)
// CHECK: %[[ROWS:.*]] = stablehlo.reshape %[[X]]
// CHECK: %[[END:.*]]:2 = stablehlo.while({{.*}} attributes {rhino.micro_batches = 2 : i64}
// CHECK: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[ROWS]]
// CHECK-NOT: {{rhino[.](virtual_)?stage}}
// CHECK: %[[NEW:.*]] = stablehlo.subtract %[[W]], %[[END]]#1 : tensor<4xf32>
// CHECK-NEXT: return %[[NEW]], %[[END]]#1

module attributes {rhino.num_stages = 1 : i64} {
func.func @main(%unread: tensor<4xf32> loc("unread"), %x: tensor<8x4xf32> loc("x"), %table: tensor<4xf32> {tf.aliasing_output = 0 : i32} loc("table"),
    %w: tensor<4xf32> {tf.aliasing_output = 1 : i32} loc("w")) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %nought = stablehlo.constant dense<0.0> : tensor<f32>
  %start = stablehlo.constant dense<0.0> : tensor<4xf32>
  %rows = stablehlo.reshape %x : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
  %end:2 = stablehlo.while(%i = %zero, %sum = %start) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 2 : i64} cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %slice = stablehlo.dynamic_slice %rows, %i, %zero, %zero, sizes = [1, 4, 4] {rhino.virtual_stage = 0 : i64}
        : (tensor<2x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %mine = stablehlo.reduce(%slice init: %nought) applies stablehlo.add across dimensions = [0, 1] {rhino.virtual_stage = 0 : i64}
        : (tensor<1x4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %new = stablehlo.add %sum, %mine {rhino.virtual_stage = 0 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %new : tensor<i32>, tensor<4xf32>
  }
  %new_w = stablehlo.subtract %w, %end#1 {rhino.stage = 0 : i64} : tensor<4xf32>
  return %table, %new_w, %end#1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
}
