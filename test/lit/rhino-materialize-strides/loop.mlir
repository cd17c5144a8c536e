// RUN: rhino-opt --rhino-materialize-strides %s | filecheck %s
// RUN: rhino-opt --rhino-materialize-strides %s | rhino-run --compare=%s
// Stacked weights that a loop over layers carries are viewed where it begins, in its body and where it ends.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X0:.*]]: tensor<4x4xf32>, %[[W:.*]]: tensor<2x4x2x4xf32> {rhino.view = array<i64: 2, 4, 8>}
// CHECK: stablehlo.while(%[[I:.*]] = %{{.*}}, %[[X:.*]] = %[[X0]], %[[S:.*]] = %[[W]]) : tensor<i32>, tensor<4x4xf32>, tensor<2x4x2x4xf32>
// CHECK: %[[L:.*]] = stablehlo.dynamic_slice %[[S]], %[[I]], %{{.*}}, %{{.*}}, %{{.*}}, sizes = [1, 4, 2, 4]
// CHECK-NEXT: %[[LAYER:.*]] = stablehlo.reshape %[[L]] : (tensor<1x4x2x4xf32>) -> tensor<4x2x4xf32>
// CHECK-NEXT: %[[Y:.*]] = stablehlo.dot_general %[[X]], %[[LAYER]], contracting_dims = [1] x [0]
// CHECK-NEXT: stablehlo.slice %[[Y]] [0:4, 0:1, 0:4]
func.func @main(%x: tensor<4x4xf32>, %w: tensor<2x4x8xf32>) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %h = %x, %s = %w) : tensor<i32>, tensor<4x4xf32>, tensor<2x4x8xf32>
  cond {
    %c = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %l = stablehlo.dynamic_slice %s, %i, %zero, %zero, sizes = [1, 4, 8] : (tensor<2x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x8xf32>
    %layer = stablehlo.reshape %l : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
    %y = stablehlo.dot_general %h, %layer, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %a = stablehlo.slice %y [0:4, 0:4] : (tensor<4x8xf32>) -> tensor<4x4xf32>
    %b = stablehlo.slice %y [0:4, 4:8] : (tensor<4x8xf32>) -> tensor<4x4xf32>
    %ab = stablehlo.multiply %a, %b : tensor<4x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %ab, %s : tensor<i32>, tensor<4x4xf32>, tensor<2x4x8xf32>
  }
  return %0#1 : tensor<4x4xf32>
}
