// RUN: rhino-opt --pass-pipeline='rhino-attention{attention=blockwise:2}' %s | filecheck %s
// A softmax between two products is a loop over blocks: it carries keys and values, and the largest number, the sum of
// exponentials and the weighted values of each row. What each row is divided by is applied behind it.

// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[Q:.*]]: tensor<4x3xf32>, %[[K:.*]]: tensor<4x3xf32>, %[[V:.*]]: tensor<4x3xf32>)
// CHECK: %[[LOOP:.*]]:7 = stablehlo.while({{.*}}) : tensor<i32>, tensor<2x2x3xf32>, tensor<2x2x3xf32>, tensor<2x2x3xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2x3xf32>
// CHECK: stablehlo.dot_general {{.*}} -> tensor<2x2x2xf32>
// CHECK-DAG: stablehlo.pad {{.*}} low = [-1, 0, 0], high = [1, 0, 0]
// CHECK-DAG: stablehlo.pad {{.*}} low = [1, 0, 0], high = [-1, 0, 0]
// CHECK: %[[SUM:.*]] = stablehlo.reshape %[[LOOP]]#5 : (tensor<2x2xf32>) -> tensor<4xf32>
// CHECK: %[[MIXED:.*]] = stablehlo.reshape %[[LOOP]]#6 : (tensor<2x2x3xf32>) -> tensor<4x3xf32>
// CHECK: %[[ROWS:.*]] = stablehlo.broadcast_in_dim %[[SUM]], dims = [0] : (tensor<4xf32>) -> tensor<4x3xf32>
// CHECK-NEXT: stablehlo.divide %[[MIXED]], %[[ROWS]]
func.func @main(%q: tensor<4x3xf32>, %k: tensor<4x3xf32>, %v: tensor<4x3xf32>) -> tensor<4x3xf32> {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x4xf32>
  %m = stablehlo.reduce(%s init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %ms = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>
  %d = stablehlo.subtract %s, %ms : tensor<4x4xf32>
  %e = stablehlo.exponential %d : tensor<4x4xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %ls = stablehlo.broadcast_in_dim %l, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>
  %p = stablehlo.divide %e, %ls : tensor<4x4xf32>
  %o = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  return %o : tensor<4x3xf32>
}
