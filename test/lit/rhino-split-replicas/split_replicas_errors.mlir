// RUN: rhino-opt --pass-pipeline='micro-batch{num=4},rhino-join-replicas{replicas=2 cluster=cpu2},rhino-split-replicas{replicas=3;2 cluster=cpu2}' --verify-diagnostics %s
// Shares have to come to the number of micro-batches.

// expected-error @unknown {{[RHI-REPLICA-001] 4 micro-batches are not 3;2}}
// expected-note @unknown {{to fix: give each replica one micro-batch at least, and as many in all as there are}}
func.func @main(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x4xf32>) -> tensor<4x4xf32> {
  %g = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %new = stablehlo.subtract %w, %g : tensor<4x4xf32>
  return %new : tensor<4x4xf32>
}
