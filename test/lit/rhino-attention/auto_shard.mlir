// RUN: rhino-opt --auto-shard --attention=blockwise:2 --cluster=cpu2 --mesh=2 %s | filecheck %s
// Shardings are chosen for the loop: its blocks, keys and values among what it carries, can be split as they go round.

// CHECK: stablehlo.while
// CHECK: stablehlo.pad
func.func @main(%q: tensor<4x3xf32>, %k: tensor<4x3xf32>) -> tensor<4x3xf32> {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x4xf32>
  %m = stablehlo.reduce(%s init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %ms = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>
  %d = stablehlo.subtract %s, %ms : tensor<4x4xf32>
  %e = stablehlo.exponential %d : tensor<4x4xf32>
  %o = stablehlo.dot_general %e, %k, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  return %o : tensor<4x3xf32>
}
