// RUN: rhino-opt --rhino-split-scans="counts=3;2" %s | filecheck %s
// RUN: rhino-opt --rhino-split-scans="counts=3;2" --remarks-filter=. -o - %s 2>&1 | filecheck %s --check-prefix=REMARK
// A loop over five rows becomes loops over three and two. Each reads its own rows of the weights and stacks its own; the sum of all is the sum
// of their sums, and only what wants the whole stack gets it.
// REMARK: a loop over 5 layers is cut in pieces of 3, 2

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<4xf32>, %[[W:.*]]: tensor<5x4xf32>
// CHECK: %[[THREE:.*]] = stablehlo.constant dense<3>
// CHECK: %[[FIRST:.*]] = stablehlo.slice %[[W]] [0:3, 0:4]
// CHECK-NEXT: %[[LAST:.*]] = stablehlo.slice %[[W]] [3:5, 0:4]
// CHECK: %[[A:.*]]:4 = stablehlo.while({{.*}} = %[[X]], {{.*}} = %[[FIRST]], {{.*}}) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
// CHECK: stablehlo.compare LT, %{{.*}}, %[[THREE]]
// CHECK: stablehlo.dynamic_update_slice
// CHECK: %[[B:.*]]:4 = stablehlo.while({{.*}} = %[[A]]#1, {{.*}} = %[[LAST]], {{.*}}) : tensor<i32>, tensor<4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
// CHECK: %[[E0:.*]] = stablehlo.exponential %[[A]]#3
// CHECK-NEXT: %[[E1:.*]] = stablehlo.exponential %[[B]]#3
// CHECK-NEXT: %[[E:.*]] = stablehlo.concatenate %[[E0]], %[[E1]], dim = 0
// CHECK-NEXT: %[[S0:.*]] = stablehlo.reduce(%[[E0]]
// CHECK-NEXT: %[[S1:.*]] = stablehlo.reduce(%[[E1]]
// CHECK-NEXT: %[[S:.*]] = stablehlo.add %[[S0]], %[[S1]]
// CHECK-NEXT: return %[[B]]#1, %[[E]], %[[S]]
func.func @main(%x: tensor<4xf32>, %w: tensor<5x4xf32>) -> (tensor<4xf32>, tensor<5x4xf32>, tensor<f32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c5 = stablehlo.constant dense<5> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<5x4xf32>
  %r:4 = stablehlo.while(%i = %c0, %h = %x, %ws = %w, %ys = %zeros) : tensor<i32>, tensor<4xf32>, tensor<5x4xf32>, tensor<5x4xf32>
  cond {
    %t = stablehlo.compare LT, %i, %c5 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %t : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %ws, %i, %c0, sizes = [1, 4] : (tensor<5x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %p = stablehlo.reshape %row : (tensor<1x4xf32>) -> tensor<4xf32>
    %m = stablehlo.multiply %h, %p : tensor<4xf32>
    %y = stablehlo.reshape %m : (tensor<4xf32>) -> tensor<1x4xf32>
    %u = stablehlo.dynamic_update_slice %ys, %y, %i, %c0 : (tensor<5x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<5x4xf32>
    %n = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %n, %m, %ws, %u : tensor<i32>, tensor<4xf32>, tensor<5x4xf32>, tensor<5x4xf32>
  }
  %e = stablehlo.exponential %r#3 : tensor<5x4xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<5x4xf32>, tensor<f32>) -> tensor<f32>
  return %r#1, %e, %s : tensor<4xf32>, tensor<5x4xf32>, tensor<f32>
}
