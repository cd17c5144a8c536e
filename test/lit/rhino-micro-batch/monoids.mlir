// RUN: rhino-opt --micro-batches=4 %s | filecheck %s
// What is largest over the batch, and what is per example: a maximum starts from minus infinity, and rows are kept, one part beside another.

// CHECK-LABEL: func.func @main
// CHECK:       %[[LEAST:.*]] = stablehlo.constant dense<0xFF800000> : tensor<f32>
// CHECK-NEXT:  %[[EMPTY:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<4x5x2xf32>
// CHECK-NEXT:  %[[DONE:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[MAX:.*]] = %[[LEAST]], %[[ROWS:.*]] = %[[EMPTY]])
// CHECK:         %[[SLICE:.*]] = stablehlo.dynamic_slice %{{.*}}, %[[I]]
// CHECK-NEXT:    %[[X:.*]] = stablehlo.reshape %[[SLICE]] : (tensor<1x2x5xf32>) -> tensor<2x5xf32>
// CHECK:         %[[T:.*]] = stablehlo.transpose %{{.*}}, dims = [1, 0] : (tensor<2x5xf32>) -> tensor<5x2xf32>
// CHECK:         %[[NEWMAX:.*]] = stablehlo.maximum %[[MAX]], %{{.*}} : tensor<f32>
// CHECK-NEXT:    %[[ROW:.*]] = stablehlo.reshape %[[T]] : (tensor<5x2xf32>) -> tensor<1x5x2xf32>
// CHECK:         %[[NEWROWS:.*]] = stablehlo.dynamic_update_slice %[[ROWS]], %[[ROW]], %[[I]]
// CHECK-NEXT:    stablehlo.return %{{.*}}, %[[NEWMAX]], %[[NEWROWS]]
// CHECK:       %[[TURNED:.*]] = stablehlo.transpose %[[DONE]]#2, dims = [1, 0, 2] : (tensor<4x5x2xf32>) -> tensor<5x4x2xf32>
// CHECK-NEXT:  %[[ALL:.*]] = stablehlo.reshape %[[TURNED]] : (tensor<5x4x2xf32>) -> tensor<5x8xf32>
// CHECK:       return %[[DONE]]#1, %[[ALL]]
func.func @main(%w: tensor<5xf32>, %x: tensor<8x5xf32>) -> (tensor<f32>, tensor<5x8xf32>) {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %ws = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<5xf32>) -> tensor<8x5xf32>
  %y = stablehlo.multiply %x, %ws : tensor<8x5xf32>
  %max = stablehlo.reduce(%y init: %least) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<8x5xf32>, tensor<f32>) -> tensor<f32>
  %t = stablehlo.transpose %y, dims = [1, 0] : (tensor<8x5xf32>) -> tensor<5x8xf32>
  return %max, %t : tensor<f32>, tensor<5x8xf32>
}
