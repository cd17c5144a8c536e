// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// What follows cheaply from another stack is computed in the loop that reads it; what is costly, moved, or read after the loops is stacked.

// CHECK-LABEL: func.func @main(
// CHECK: %[[ONE:.*]]:5 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[X:.*]] = %arg0, %[[TANHS:.*]] = %{{.*}}, %[[TURNED:.*]] = %{{.*}}, %[[KEPT:.*]] = %{{.*}})
// CHECK: do {
// CHECK: %[[T:.*]] = stablehlo.tanh %[[X]]
// CHECK: %[[S:.*]] = stablehlo.multiply %[[T]], %[[T]]
// CHECK: stablehlo.dynamic_update_slice %[[TANHS]]
// CHECK: stablehlo.dynamic_update_slice %[[TURNED]]
// CHECK: stablehlo.dynamic_update_slice %[[KEPT]]
// CHECK: stablehlo.return
// CHECK: stablehlo.while(%[[J:.*]] = %{{.*}}, %[[A:.*]] = %{{.*}}, %[[READ:.*]] = %[[ONE]]#2, %[[TURN:.*]] = %[[ONE]]#3)
// CHECK: do {
// CHECK: %[[PLACE:.*]] = stablehlo.subtract %{{.*}}, %[[J]]
// CHECK-NEXT: %[[PART:.*]] = stablehlo.dynamic_slice %[[READ]], %[[PLACE]], %{{.*}}, %{{.*}}, sizes = [1, 2, 3]
// CHECK-NEXT: %[[ROW:.*]] = stablehlo.reshape %[[PART]] : (tensor<1x2x3xf32>) -> tensor<2x3xf32>
// CHECK-NEXT: %[[AGAIN:.*]] = stablehlo.multiply %[[ROW]], %[[ROW]]
// CHECK: stablehlo.add %[[A]], %[[AGAIN]]
// CHECK: return %{{.*}}, %[[ONE]]#4

func.func @main(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<4x2x3xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<2x3xf32>
  %empty = stablehlo.constant dense<0.0> : tensor<4x2x3xf32>
  %turned = stablehlo.constant dense<0.0> : tensor<4x3x2xf32>
  %f:6 = stablehlo.while(%i = %zero, %v = %x, %tanhs = %empty, %squares = %empty, %turns = %turned, %kept = %empty)
      : tensor<i32>, tensor<2x3xf32>, tensor<4x2x3xf32>, tensor<4x2x3xf32>, tensor<4x3x2xf32>, tensor<4x2x3xf32> cond {
    %more = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %tanh = stablehlo.tanh %v : tensor<2x3xf32>
    %square = stablehlo.multiply %tanh, %tanh : tensor<2x3xf32>
    %turn = stablehlo.transpose %square, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %w = stablehlo.add %v, %square : tensor<2x3xf32>
    %a = stablehlo.broadcast_in_dim %tanh, dims = [1, 2] : (tensor<2x3xf32>) -> tensor<1x2x3xf32>
    %b = stablehlo.broadcast_in_dim %square, dims = [1, 2] : (tensor<2x3xf32>) -> tensor<1x2x3xf32>
    %c = stablehlo.broadcast_in_dim %turn, dims = [1, 2] : (tensor<3x2xf32>) -> tensor<1x3x2xf32>
    %p = stablehlo.dynamic_update_slice %tanhs, %a, %i, %zero, %zero : (tensor<4x2x3xf32>, tensor<1x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x2x3xf32>
    %q = stablehlo.dynamic_update_slice %squares, %b, %i, %zero, %zero : (tensor<4x2x3xf32>, tensor<1x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x2x3xf32>
    %r = stablehlo.dynamic_update_slice %turns, %c, %i, %zero, %zero : (tensor<4x3x2xf32>, tensor<1x3x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x3x2xf32>
    %s = stablehlo.dynamic_update_slice %kept, %b, %i, %zero, %zero : (tensor<4x2x3xf32>, tensor<1x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x2x3xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %w, %p, %q, %r, %s : tensor<i32>, tensor<2x3xf32>, tensor<4x2x3xf32>, tensor<4x2x3xf32>, tensor<4x3x2xf32>, tensor<4x2x3xf32>
  }
  %g:5 = stablehlo.while(%j = %zero, %sum = %none, %tanhs = %f#2, %squares = %f#3, %turns = %f#4)
      : tensor<i32>, tensor<2x3xf32>, tensor<4x2x3xf32>, tensor<4x2x3xf32>, tensor<4x3x2xf32> cond {
    %more = stablehlo.compare LT, %j, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %place = stablehlo.subtract %three, %j : tensor<i32>
    %a = stablehlo.dynamic_slice %squares, %place, %zero, %zero, sizes = [1, 2, 3] : (tensor<4x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x3xf32>
    %square = stablehlo.reshape %a : (tensor<1x2x3xf32>) -> tensor<2x3xf32>
    %b = stablehlo.dynamic_slice %tanhs, %place, %zero, %zero, sizes = [1, 2, 3] : (tensor<4x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x3xf32>
    %tanh = stablehlo.reshape %b : (tensor<1x2x3xf32>) -> tensor<2x3xf32>
    %c = stablehlo.dynamic_slice %turns, %place, %zero, %zero, sizes = [1, 3, 2] : (tensor<4x3x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x2xf32>
    %turn = stablehlo.reshape %c : (tensor<1x3x2xf32>) -> tensor<3x2xf32>
    %back = stablehlo.transpose %turn, dims = [1, 0] : (tensor<3x2xf32>) -> tensor<2x3xf32>
    %d = stablehlo.add %sum, %square : tensor<2x3xf32>
    %e = stablehlo.multiply %d, %tanh : tensor<2x3xf32>
    %h = stablehlo.add %e, %back : tensor<2x3xf32>
    %next = stablehlo.add %j, %one : tensor<i32>
    stablehlo.return %next, %h, %tanhs, %squares, %turns : tensor<i32>, tensor<2x3xf32>, tensor<4x2x3xf32>, tensor<4x2x3xf32>, tensor<4x3x2xf32>
  }
  return %g#1, %f#5 : tensor<2x3xf32>, tensor<4x2x3xf32>
}
