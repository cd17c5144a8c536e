// RUN: rhino-opt --rhino-split-scans="counts=2;1" %s | filecheck %s
// One iteration is no loop: its ops stand for themselves, so that a stage may end among them.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<4xf32>, %[[W:.*]]: tensor<3x4xf32>
// CHECK: %[[LAST:.*]] = stablehlo.slice %[[W]] [2:3, 0:4]
// CHECK: %[[A:.*]]:4 = stablehlo.while(
// CHECK: stablehlo.return
// CHECK: stablehlo.return
// CHECK-NEXT: }
// CHECK-NEXT: %[[P:.*]] = stablehlo.reshape %[[LAST]]
// CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[A]]#1, %[[P]]
// CHECK-NEXT: %[[Y:.*]] = stablehlo.reshape %[[M]]
// CHECK-NEXT: %[[YS:.*]] = stablehlo.concatenate %[[A]]#3, %[[Y]], dim = 0
// CHECK-NEXT: return %[[M]], %[[YS]]
func.func @main(%x: tensor<4xf32>, %w: tensor<3x4xf32>) -> (tensor<4xf32>, tensor<3x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %r:4 = stablehlo.while(%i = %c0, %h = %x, %ws = %w, %ys = %zeros) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  cond {
    %t = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %t : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %ws, %i, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %p = stablehlo.reshape %row : (tensor<1x4xf32>) -> tensor<4xf32>
    %m = stablehlo.multiply %h, %p : tensor<4xf32>
    %y = stablehlo.reshape %m : (tensor<4xf32>) -> tensor<1x4xf32>
    %u = stablehlo.dynamic_update_slice %ys, %y, %i, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %n = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %n, %m, %ws, %u : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  }
  return %r#1, %r#3 : tensor<4xf32>, tensor<3x4xf32>
}
