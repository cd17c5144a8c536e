// RUN: rhino-opt --micro-batches=2 %s | filecheck %s
// A loop of the step runs inside the loop over micro-batches, on a part of the batch; the sum that it carries is one of parts.

// CHECK-LABEL: func.func @main
// CHECK:       stablehlo.while({{.*}}) : tensor<i32>, tensor<6xf32> attributes {rhino.micro_batches = 2 : i64}
// CHECK:         stablehlo.while({{.*}}) : tensor<i32>, tensor<4x6xf32>, tensor<6xf32>
// CHECK:           stablehlo.dot_general {{.*}} : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
// CHECK:           stablehlo.reduce({{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<6xf32>
// CHECK:       stablehlo.subtract
func.func @main(%w: tensor<6x6xf32>, %b: tensor<6xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x6xf32>) -> tensor<6xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %start = stablehlo.constant dense<0.0> : tensor<6xf32>
  %done:3 = stablehlo.while(%i = %zero, %y = %x, %sum = %start) : tensor<i32>, tensor<8x6xf32>, tensor<6xf32>
  cond {
    %more = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %next = stablehlo.add %i, %one : tensor<i32>
    %z = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x6xf32>) -> tensor<8x6xf32>
    %s = stablehlo.reduce(%z init: %none) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
    %both = stablehlo.add %sum, %s : tensor<6xf32>
    stablehlo.return %next, %z, %both : tensor<i32>, tensor<8x6xf32>, tensor<6xf32>
  }
  %new = stablehlo.subtract %b, %done#2 : tensor<6xf32>
  return %new : tensor<6xf32>
}
