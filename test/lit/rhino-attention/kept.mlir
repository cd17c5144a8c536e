// RUN: rhino-opt --pass-pipeline='rhino-attention{attention=blockwise:2}' --split-input-file --verify-diagnostics --remarks-filter=. %s | filecheck %s
// A softmax stays as it is where all of its numbers are given, where there are fewer queries than blocks of keys, and over what is no product.

// CHECK-LABEL: func.func @given
// CHECK-NOT: stablehlo.while
func.func @given(%q: tensor<4x3xf32>, %k: tensor<4x3xf32>) -> tensor<4x4xf32> {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x4xf32>
  %m = stablehlo.reduce(%s init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %ms = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>
  %d = stablehlo.subtract %s, %ms : tensor<4x4xf32>
  %e = stablehlo.exponential %d : tensor<4x4xf32>
  // expected-remark@below {{a softmax of 4 x 4 numbers stays as it is: what comes after reads all of them, so they are stored}}
  return %e : tensor<4x4xf32>
}

// -----

// CHECK-LABEL: func.func @few_queries
// CHECK-NOT: stablehlo.while
func.func @few_queries(%q: tensor<2x3xf32>, %k: tensor<6x3xf32>) -> tensor<2x3xf32> {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<2x3xf32>, tensor<6x3xf32>) -> tensor<2x6xf32>
  // expected-remark@below {{attention of 2 queries and 6 keys stays as it is: fewer queries than blocks of at most 2 keys}}
  %m = stablehlo.reduce(%s init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<2x6xf32>, tensor<f32>) -> tensor<2xf32>
  %ms = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<2xf32>) -> tensor<2x6xf32>
  %d = stablehlo.subtract %s, %ms : tensor<2x6xf32>
  %e = stablehlo.exponential %d : tensor<2x6xf32>
  %o = stablehlo.dot_general %e, %k, contracting_dims = [1] x [0] : (tensor<2x6xf32>, tensor<6x3xf32>) -> tensor<2x3xf32>
  return %o : tensor<2x3xf32>
}

// -----

// CHECK-LABEL: func.func @argument
// CHECK-NOT: stablehlo.while
func.func @argument(%x: tensor<4x3xf32>) -> tensor<4x3xf32> {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%x init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32>
  %ms = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x3xf32>
  %d = stablehlo.subtract %x, %ms : tensor<4x3xf32>
  %e = stablehlo.exponential %d : tensor<4x3xf32>
  return %e : tensor<4x3xf32>
}
