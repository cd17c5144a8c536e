// RUN: rhino-opt %s --pass-pipeline='rhino-materialize-strides{parts=2}' | filecheck %s
// Weights that the step concatenates stay as they are; what they make together is seen in their blocks.

// CHECK: func.func public @main(%[[X:.*]]: tensor<4x6xf32>, %[[U:.*]]: tensor<6x8xf32>, %[[V:.*]]: tensor<6x4xf32>)
// CHECK-DAG: %[[A:.*]] = stablehlo.reshape %[[U]] : (tensor<6x8xf32>) -> tensor<6x2x4xf32>
// CHECK-DAG: %[[B:.*]] = stablehlo.reshape %[[V]] : (tensor<6x4xf32>) -> tensor<6x2x2xf32>
// CHECK: %[[W:.*]] = stablehlo.concatenate %[[A]], %[[B]], dim = 2 : (tensor<6x2x4xf32>, tensor<6x2x2xf32>) -> tensor<6x2x6xf32>
// CHECK: stablehlo.dot_general %[[X]], %[[W]]
func.func public @main(%x: tensor<4x6xf32>, %u: tensor<6x8xf32>, %v: tensor<6x4xf32>) -> (tensor<4x8xf32>, tensor<4x4xf32>) {
  %w = stablehlo.concatenate %u, %v, dim = 1 : (tensor<6x8xf32>, tensor<6x4xf32>) -> tensor<6x12xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x12xf32>) -> tensor<4x12xf32>
  %a = stablehlo.slice %y [0:4, 0:8] : (tensor<4x12xf32>) -> tensor<4x8xf32>
  %b = stablehlo.slice %y [0:4, 8:12] : (tensor<4x12xf32>) -> tensor<4x4xf32>
  return %a, %b : tensor<4x8xf32>, tensor<4x4xf32>
}
