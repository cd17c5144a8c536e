// RUN: rhino-opt --micro-batches=2 %s | filecheck %s
// How many examples count follows from the batch alone: it is counted before the loop, over all of them, where each part needs it; and
// places of the batch are counted on from part to part.

// CHECK-LABEL: func.func @main
// CHECK-SAME:    (%[[W:.*]]: tensor<6xf32> {tf.aliasing_output = 0 : i32}, %[[MASK:.*]]: tensor<8xf32>, %[[X:.*]]: tensor<8x6xf32>)
// CHECK:       %[[COUNT:.*]] = stablehlo.reduce(%[[MASK]] init: %{{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
// CHECK:       stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}}) : tensor<i32>, tensor<6xf32> attributes {rhino.micro_batches = 2 : i64}
// CHECK:         %[[NUMBER:.*]] = stablehlo.convert %[[I]] : (tensor<i32>) -> tensor<i64>
// CHECK:         %[[BEGIN:.*]] = stablehlo.multiply %[[NUMBER]], %{{.*}} : tensor<i64>
// CHECK-NEXT:    %[[FROM:.*]] = stablehlo.convert %[[BEGIN]] : (tensor<i64>) -> tensor<i32>
// CHECK-NEXT:    %[[FROMS:.*]] = stablehlo.broadcast_in_dim %[[FROM]], dims = [] : (tensor<i32>) -> tensor<4xi32>
// CHECK-NEXT:    %[[PLACES:.*]] = stablehlo.add %{{.*}}, %[[FROMS]] : tensor<4xi32>
// CHECK:         %[[COUNTS:.*]] = stablehlo.broadcast_in_dim %[[COUNT]], dims = [] : (tensor<f32>) -> tensor<4xf32>
// CHECK:         stablehlo.divide %{{.*}}, %[[COUNTS]] : tensor<4xf32>
func.func @main(%w: tensor<6xf32> {tf.aliasing_output = 0 : i32}, %mask: tensor<8xf32>, %x: tensor<8x6xf32>) -> tensor<6xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %places = stablehlo.iota dim = 0 : tensor<8xi32>
  %weights = stablehlo.convert %places : (tensor<8xi32>) -> tensor<8xf32>
  %count = stablehlo.reduce(%mask init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %counts = stablehlo.broadcast_in_dim %count, dims = [] : (tensor<f32>) -> tensor<8xf32>
  %mean = stablehlo.divide %mask, %counts : tensor<8xf32>
  %weighted = stablehlo.multiply %mean, %weights : tensor<8xf32>
  %g = stablehlo.dot_general %x, %weighted, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8xf32>) -> tensor<6xf32>
  %new = stablehlo.subtract %w, %g : tensor<6xf32>
  return %new : tensor<6xf32>
}
