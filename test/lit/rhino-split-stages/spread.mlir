// RUN: rhino-opt --rhino-split-stages %s | filecheck %s
// A tensor that a scalar is spread over does not cross from stage to stage: the scalar does, and is spread where it is read.

// CHECK: {gives = ["forward_0.0"], phase = "forward", program = @forward_0, reads = ["x"], stage = 0 : i64}
// CHECK-SAME: {gives = ["sum 1"], phase = "backward", program = @backward_1, reads = ["x", "forward_0.0", "sum 1"], stage = 1 : i64}
// CHECK: func.func private @forward_0(%[[X:.*]]: tensor<4xf32>) -> tensor<f32>
// CHECK: func.func private @backward_1(%[[X:.*]]: tensor<4xf32>, %[[SCALE:.*]]: tensor<f32>, %[[SUM:.*]]: tensor<4xf32> {{.*}}) -> tensor<4xf32>
// CHECK-NEXT: %[[WIDE:.*]] = stablehlo.broadcast_in_dim %[[SCALE]]
// CHECK-NEXT: %[[Y:.*]] = stablehlo.multiply %[[X]], %[[WIDE]]
// CHECK-NEXT: stablehlo.add %[[SUM]], %[[Y]]

module attributes {rhino.num_stages = 2 : i64} {
func.func @main(%x: tensor<4xf32> loc("x")) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %start = stablehlo.constant dense<0.0> : tensor<4xf32>
  %end:2 = stablehlo.while(%i = %zero, %sum = %start) : tensor<i32>, tensor<4xf32> attributes {rhino.micro_batches = 1 : i64} cond {
    %more = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %scale = stablehlo.reduce(%x init: %none) applies stablehlo.add across dimensions = [0] {rhino.virtual_stage = 0 : i64}
        : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %wide = stablehlo.broadcast_in_dim %scale, dims = [] {rhino.virtual_stage = 0 : i64} : (tensor<f32>) -> tensor<4xf32>
    %y = stablehlo.multiply %x, %wide {rhino.virtual_stage = 1 : i64} : tensor<4xf32>
    %more_sum = stablehlo.add %sum, %y {rhino.virtual_stage = 1 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %more_sum : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}
}
