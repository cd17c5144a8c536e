// RUN: rhino-opt --rhino-split-scans="counts=2;3 leaves=true" %s | filecheck %s
// A backward pass reads rows from the last to the first, so the loop over the last rows comes first. With `leaves`, the weights are arguments
// for the rows of each loop, and so are the results that take their place.

// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>, %[[W0:.*]]: tensor<2x4xf32> {rhino.rows = array<i64: 0, 2>, tf.aliasing_output = 1 : i32}, %[[W1:.*]]: tensor<3x4xf32> {rhino.rows = array<i64: 2, 5>, tf.aliasing_output = 2 : i32})
// CHECK-SAME: -> (tensor<4xf32>, tensor<2x4xf32> {rhino.rows = array<i64: 0, 2>}, tensor<3x4xf32> {rhino.rows = array<i64: 2, 5>})
// CHECK: %[[A:.*]]:4 = stablehlo.while({{.*}} = %[[X]], {{.*}} = %[[W1]], {{.*}}) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
// CHECK: %[[ROW:.*]] = stablehlo.subtract %c
// CHECK: stablehlo.dynamic_slice %{{.*}}, %[[ROW]]
// CHECK: %[[B:.*]]:4 = stablehlo.while({{.*}} = %[[A]]#1, {{.*}} = %[[W0]], {{.*}}) : tensor<i32>, tensor<4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
// CHECK: %[[N0:.*]] = stablehlo.add %[[W0]], %[[B]]#3
// CHECK-NEXT: %[[N1:.*]] = stablehlo.add %[[W1]], %[[A]]#3
// CHECK-NEXT: return %[[B]]#1, %[[N0]], %[[N1]]
func.func @main(%x: tensor<4xf32>, %w: tensor<5x4xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<4xf32>, tensor<5x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c5 = stablehlo.constant dense<5> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<5x4xf32>
  %r:4 = stablehlo.while(%i = %c0, %h = %x, %ws = %w, %ys = %zeros) : tensor<i32>, tensor<4xf32>, tensor<5x4xf32>, tensor<5x4xf32>
  cond {
    %t = stablehlo.compare LT, %i, %c5 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %t : tensor<i1>
  } do {
    %k = stablehlo.subtract %c4, %i : tensor<i32>
    %row = stablehlo.dynamic_slice %ws, %k, %c0, sizes = [1, 4] : (tensor<5x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %p = stablehlo.reshape %row : (tensor<1x4xf32>) -> tensor<4xf32>
    %m = stablehlo.multiply %h, %p : tensor<4xf32>
    %y = stablehlo.reshape %m : (tensor<4xf32>) -> tensor<1x4xf32>
    %u = stablehlo.dynamic_update_slice %ys, %y, %k, %c0 : (tensor<5x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<5x4xf32>
    %n = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %n, %m, %ws, %u : tensor<i32>, tensor<4xf32>, tensor<5x4xf32>, tensor<5x4xf32>
  }
  %new = stablehlo.add %w, %r#3 : tensor<5x4xf32>
  return %r#1, %new : tensor<4xf32>, tensor<5x4xf32>
}
