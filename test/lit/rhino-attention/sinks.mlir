// RUN: rhino-opt --pass-pipeline='rhino-attention{attention=blockwise:2}' --verify-diagnostics --remarks-filter=. %s | filecheck %s
// A sink, which is a column beside the scores, is no key: the largest number and the sum of each row are joined with it.

// CHECK-LABEL: func.func @sink
// CHECK-NOT: tensor<4x5xf32>
// CHECK: stablehlo.while
// CHECK-NOT: tensor<4x5xf32>
func.func @sink(%q: tensor<4x3xf32>, %k: tensor<4x3xf32>, %sink: tensor<4x1xf32>) -> tensor<4x3xf32> {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x4xf32>
  %c = stablehlo.concatenate %s, %sink, dim = 1 : (tensor<4x4xf32>, tensor<4x1xf32>) -> tensor<4x5xf32>
  // expected-remark@below {{attention of 4 queries and 4 keys is computed in 2 blocks, by one loop}}
  %m = stablehlo.reduce(%c init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<4x5xf32>, tensor<f32>) -> tensor<4xf32>
  %ms = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x5xf32>
  %d = stablehlo.subtract %c, %ms : tensor<4x5xf32>
  %e = stablehlo.exponential %d : tensor<4x5xf32>
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x5xf32>, tensor<f32>) -> tensor<4xf32>
  %ts = stablehlo.broadcast_in_dim %t, dims = [0] : (tensor<4xf32>) -> tensor<4x5xf32>
  %w = stablehlo.divide %e, %ts : tensor<4x5xf32>
  %p = stablehlo.slice %w [0:4, 0:4] : (tensor<4x5xf32>) -> tensor<4x4xf32>
  %o = stablehlo.dot_general %p, %k, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  return %o : tensor<4x3xf32>
}
