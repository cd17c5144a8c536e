// RUN: rhino-opt --rhino-normalize --rhino-amp %s | filecheck %s
// A loop over layers reads its stack of weights in f32 and converts the row that it has taken. What it hands from layer to layer, and the stack of
// activations that it makes of it, are in bf16; what it sums up over the layers stays in f32.

// CHECK: func.func @main(%[[W:.*]]: tensor<4x8x8xf32>
// CHECK: %[[X16:.*]] = stablehlo.dot_general {{.*}} -> tensor<16x8xbf16>
// CHECK: stablehlo.while({{.*}}) : tensor<i32>, tensor<16x8xbf16>, tensor<16x8xf32>, tensor<4x16x8xbf16>, tensor<4x8x8xf32>
// CHECK: %[[ROW:.*]] = stablehlo.dynamic_slice %{{.*}}, sizes = [1, 8, 8] : (tensor<4x8x8xf32>
// CHECK-NEXT: %[[ROW16:.*]] = stablehlo.convert %[[ROW]] : (tensor<1x8x8xf32>) -> tensor<1x8x8xbf16>
// CHECK-NEXT: %[[WEIGHT:.*]] = stablehlo.reshape %[[ROW16]] : (tensor<1x8x8xbf16>) -> tensor<8x8xbf16>
// CHECK-NEXT: %[[H:.*]] = stablehlo.dot_general %{{.*}}, %[[WEIGHT]], {{.*}} -> tensor<16x8xbf16>
// CHECK: stablehlo.add %{{.*}}, %{{.*}} : tensor<16x8xf32>
func.func @main(%w: tensor<4x8x8xf32> {tf.aliasing_output = 0 : i32}, %v: tensor<8x8xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<16x8xf32>)
    -> (tensor<4x8x8xf32>, tensor<8x8xf32>, tensor<16x8xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %start = stablehlo.constant dense<0.0> : tensor<16x8xf32>
  %empty = stablehlo.constant dense<0.0> : tensor<4x16x8xf32>
  %x0 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %end:5 = stablehlo.while(%i = %zero, %h = %x0, %sum = %start, %stack = %empty, %ws = %w)
      : tensor<i32>, tensor<16x8xf32>, tensor<16x8xf32>, tensor<4x16x8xf32>, tensor<4x8x8xf32> cond {
    %more = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 8, 8] : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %weight = stablehlo.reshape %row : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %a = stablehlo.dot_general %h, %weight, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    %next = stablehlo.add %h, %a : tensor<16x8xf32>
    %kept = stablehlo.reshape %a : (tensor<16x8xf32>) -> tensor<1x16x8xf32>
    %stacked = stablehlo.dynamic_update_slice %stack, %kept, %i, %zero, %zero : (tensor<4x16x8xf32>, tensor<1x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x16x8xf32>
    %added = stablehlo.add %sum, %next : tensor<16x8xf32>
    %after = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %after, %next, %added, %stacked, %ws : tensor<i32>, tensor<16x8xf32>, tensor<16x8xf32>, tensor<4x16x8xf32>, tensor<4x8x8xf32>
  }
  %last = stablehlo.dynamic_slice %end#3, %one, %zero, %zero, sizes = [1, 16, 8] : (tensor<4x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x8xf32>
  %flat = stablehlo.reshape %last : (tensor<1x16x8xf32>) -> tensor<16x8xf32>
  %dv = stablehlo.dot_general %flat, %end#1, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %new = stablehlo.subtract %v, %dv : tensor<8x8xf32>
  %loss = stablehlo.reduce(%end#2 init: %none) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<f32>
  return %w, %new, %end#2, %loss : tensor<4x8x8xf32>, tensor<8x8xf32>, tensor<16x8xf32>, tensor<f32>
}
