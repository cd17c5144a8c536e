// RUN: rhino-opt %s --rhino-parted-statistics="batch-statistics=4-parts" | filecheck %s
// RUN: rhino-opt %s --rhino-parted-statistics="batch-statistics=per-part" | filecheck %s --check-prefix=WHOLE
// A sum over the batch that its examples need is one of each of four parts, times their number; the batch stays one.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<8x16xf32>, %[[W:[a-z0-9]+]]: tensor<16x16xf32>
// CHECK: %[[H:.*]] = stablehlo.dot_general %[[X]], %[[W]]
// CHECK: %[[PARTS:.*]] = stablehlo.reshape %[[H]] : (tensor<8x16xf32>) -> tensor<4x2x16xf32>
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.reduce(%[[PARTS]] init: %{{.*}}) applies stablehlo.add across dimensions = [1]
// CHECK-NEXT: %[[AS_OF_ALL:.*]] = stablehlo.multiply %[[SUM]], %{{.*}} : tensor<4x16xf32>
// CHECK-NEXT: %[[OF_EACH:.*]] = stablehlo.broadcast_in_dim %[[AS_OF_ALL]], dims = [0, 2] : (tensor<4x16xf32>) -> tensor<4x2x16xf32>
// CHECK-NEXT: %[[OF_ALL:.*]] = stablehlo.reshape %[[OF_EACH]] : (tensor<4x2x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT: %[[CENTERED:.*]] = stablehlo.subtract %[[H]], %[[OF_ALL]]
// CHECK-NEXT: %[[GRADIENT:.*]] = stablehlo.dot_general %[[X]], %[[CENTERED]]
// CHECK-NEXT: stablehlo.subtract %[[W]], %[[GRADIENT]]

// WHOLE-NOT: tensor<4x
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x16xf32> {tf.aliasing_output = 0 : i32}) -> tensor<16x16xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  %all = stablehlo.broadcast_in_dim %sum, dims = [1] : (tensor<16xf32>) -> tensor<8x16xf32>
  %centered = stablehlo.subtract %h, %all : tensor<8x16xf32>
  %gradient = stablehlo.dot_general %x, %centered, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
  %new = stablehlo.subtract %w, %gradient : tensor<16x16xf32>
  return %new : tensor<16x16xf32>
}
