// RUN: rhino-opt --micro-batches=2 %s | filecheck %s
// RUN: rhino-opt --micro-batches=1 %s | filecheck %s --check-prefix=ONE
// The loss and the gradient are accumulated over the parts of the batch, and applied behind the loop; one micro-batch is a loop too.

// CHECK-LABEL: func.func @main
// CHECK-SAME:    (%[[W:.*]]: tensor<6x4xf32> {tf.aliasing_output = 0 : i32}, %[[X:.*]]: tensor<8x6xf32>, %[[Y:.*]]: tensor<8x4xf32>)
// CHECK-NEXT:  %[[XS:.*]] = stablehlo.reshape %[[X]] : (tensor<8x6xf32>) -> tensor<2x4x6xf32>
// CHECK-NEXT:  %[[YS:.*]] = stablehlo.reshape %[[Y]] : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
// CHECK:       %[[DONE:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[LOSSES:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}}) : tensor<i32>, tensor<f32>, tensor<6x4xf32> attributes {rhino.micro_batches = 2 : i64}
// CHECK:         %[[END:.*]] = stablehlo.constant dense<2> : tensor<i32>
// CHECK-NEXT:    stablehlo.compare LT, %[[I]], %[[END]]
// CHECK:         %[[NEXT:.*]] = stablehlo.add %[[I]]
// CHECK:         %[[ROW:.*]] = stablehlo.dynamic_slice %[[XS]], %[[I]], %[[C:.*]], %[[C]], sizes = [1, 4, 6]
// CHECK-NEXT:    %[[PART:.*]] = stablehlo.reshape %[[ROW]] : (tensor<1x4x6xf32>) -> tensor<4x6xf32>
// CHECK:         %[[P:.*]] = stablehlo.dot_general %[[PART]], %[[W]], contracting_dims = [1] x [0]
// CHECK:         %[[LOSS:.*]] = stablehlo.reduce
// CHECK:         %[[G:.*]] = stablehlo.dot_general %[[PART]], %{{.*}}, contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[NEWLOSSES:.*]] = stablehlo.add %[[LOSSES]], %[[LOSS]]
// CHECK-NEXT:    %[[NEWSUM:.*]] = stablehlo.add %[[SUM]], %[[G]]
// CHECK-NEXT:    stablehlo.return %[[NEXT]], %[[NEWLOSSES]], %[[NEWSUM]]
// CHECK:       %[[NEW:.*]] = stablehlo.subtract %[[W]], %[[DONE]]#2
// CHECK-NEXT:  return %[[NEW]], %[[DONE]]#1

// ONE: stablehlo.while{{.*}} attributes {rhino.micro_batches = 1 : i64}
func.func @main(%w: tensor<6x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x6xf32>, %y: tensor<8x4xf32>) -> (tensor<6x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
  %e = stablehlo.subtract %p, %y : tensor<8x4xf32>
  %s = stablehlo.multiply %e, %e : tensor<8x4xf32>
  %loss = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %g = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
  %new = stablehlo.subtract %w, %g : tensor<6x4xf32>
  return %new, %loss : tensor<6x4xf32>, tensor<f32>
}
