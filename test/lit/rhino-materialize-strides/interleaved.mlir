// RUN: rhino-opt %s --pass-pipeline='rhino-materialize-strides{parts=2}' | filecheck %s
// Blocks of several sizes interleave: of 8 queries, 4 keys and 4 values each of two parts has its share, one after the other.

// CHECK: module attributes {rhino.interleaved}
// CHECK: func.func public @main(%[[X:.*]]: tensor<4x6xf32>, %[[W:.*]]: tensor<6x2x8xf32> {rhino.blocks = [array<i64>, array<i64: 2, 8, 4, 4>], rhino.view = array<i64: 6, 16>})
// CHECK: %[[Y:.*]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x2x8xf32>) -> tensor<4x2x8xf32>
// CHECK-NEXT: %[[Q:.*]] = stablehlo.slice %[[Y]] [0:4, 0:2, 0:4] : (tensor<4x2x8xf32>) -> tensor<4x2x4xf32>
// CHECK-NEXT: stablehlo.reshape %[[Q]] : (tensor<4x2x4xf32>) -> tensor<4x8xf32>
// CHECK-NEXT: %[[K:.*]] = stablehlo.slice %[[Y]] [0:4, 0:2, 4:6]
// CHECK-NEXT: stablehlo.reshape %[[K]] : (tensor<4x2x2xf32>) -> tensor<4x4xf32>
// CHECK-NEXT: stablehlo.slice %[[Y]] [0:4, 0:2, 6:8]
func.func public @main(%x: tensor<4x6xf32>, %w: tensor<6x16xf32>) -> (tensor<4x8xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x16xf32>) -> tensor<4x16xf32>
  %q = stablehlo.slice %y [0:4, 0:8] : (tensor<4x16xf32>) -> tensor<4x8xf32>
  %k = stablehlo.slice %y [0:4, 8:12] : (tensor<4x16xf32>) -> tensor<4x4xf32>
  %v = stablehlo.slice %y [0:4, 12:16] : (tensor<4x16xf32>) -> tensor<4x4xf32>
  return %q, %k, %v : tensor<4x8xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
