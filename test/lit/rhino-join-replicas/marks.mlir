// RUN: rhino-opt --pass-pipeline='micro-batch{num=4},rhino-join-replicas{replicas=2 cluster=cpu2}' %s | filecheck %s
// What is accumulated is joined as micro-batches are, and what stays is sent; of the batch each replica gets its own.

// CHECK-LABEL: func.func @sums_rows_and_extremes
// CHECK-SAME:    %[[W:.*]]: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}
// CHECK-SAME:    tensor<8x4xf32> {rhino.each_replica}
// CHECK-NEXT:    %[[SENT:.*]] = stablehlo.custom_call @rhino.send(%[[W]])
// CHECK-SAME:      sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=4, j=4}, custom>
// CHECK:         %[[LOOP:.*]]:4 = stablehlo.while
// CHECK:           stablehlo.dot_general %{{.*}}, %[[SENT]]
// CHECK:         stablehlo.custom_call @rhino.join(%[[LOOP]]#1)
// CHECK-SAME:      rhino.how = "maximum", sdy.sharding_rule = #sdy.op_sharding_rule<([])->([]), custom>
// CHECK-NEXT:    %[[G:.*]] = stablehlo.custom_call @rhino.join(%[[LOOP]]#2)
// CHECK-SAME:      rhino.how = "add"
// CHECK-NEXT:    stablehlo.custom_call @rhino.join(%[[LOOP]]#3)
// CHECK-SAME:      rhino.how = "stack"
// CHECK-SAME:      need_replication={i}
// CHECK:         stablehlo.subtract %[[W]], %[[G]]
func.func @sums_rows_and_extremes(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x4xf32>)
    -> (tensor<4x4xf32>, tensor<f32>, tensor<8x4xf32>) {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %most = stablehlo.reduce(%y init: %least) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %new = stablehlo.subtract %w, %g : tensor<4x4xf32>
  return %new, %most, %y : tensor<4x4xf32>, tensor<f32>, tensor<8x4xf32>
}
