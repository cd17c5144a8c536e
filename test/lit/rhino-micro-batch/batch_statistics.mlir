// RUN: rhino-opt %s --micro-batches=4 --batch-statistics=per-part | filecheck %s
// RUN: rhino-opt %s --micro-batches=4 --batch-statistics=per-part --verify-diagnostics --remarks-filter=statistic
// A mean of each micro-batch: its sum counts for every micro-batch as if the others were alike. The moving average is
// of the mean over micro-batches.

// CHECK: stablehlo.while
// CHECK: %[[H:.*]] = stablehlo.dot_general {{.*}} -> tensor<2x16xf32>
// CHECK: %[[SUM:.*]] = stablehlo.reduce(%[[H]] init
// CHECK: %[[FOUR:.*]] = stablehlo.constant dense<4.000000e+00> : tensor<16xf32>
// CHECK: %[[OWN:.*]] = stablehlo.multiply %[[SUM]], %[[FOUR]]
// CHECK: %[[MEAN:.*]] = stablehlo.divide %[[OWN]],
// CHECK: %[[SHARE:.*]] = stablehlo.divide %[[MEAN]], %[[FOUR]]
// CHECK: %[[ROWS:.*]] = stablehlo.broadcast_in_dim %[[MEAN]], dims = [1] : (tensor<16xf32>) -> tensor<2x16xf32>
// CHECK: stablehlo.subtract %[[H]], %[[ROWS]]
// CHECK: stablehlo.add %{{.*}}, %[[SHARE]]
func.func public @main(%w: tensor<16x16xf32> {tf.aliasing_output = 0 : i32}, %average: tensor<16xf32> {tf.aliasing_output = 1 : i32},
    %x: tensor<8x16xf32>) -> (tensor<16x16xf32>, tensor<16xf32>) {
  %zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %size = stablehlo.constant dense<8.000000e+00> : tensor<16xf32>
  %tenth = stablehlo.constant dense<1.000000e-01> : tensor<16xf32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  // expected-remark@+1 {{[rhino-micro-batch] a statistic of each micro-batch, not of the batch}}
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  %mean = stablehlo.divide %sum, %size : tensor<16xf32>
  %rows = stablehlo.broadcast_in_dim %mean, dims = [1] : (tensor<16xf32>) -> tensor<8x16xf32>
  %centered = stablehlo.subtract %h, %rows : tensor<8x16xf32>
  %gradient = stablehlo.dot_general %centered, %centered, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
  %new = stablehlo.add %w, %gradient : tensor<16x16xf32>
  %share = stablehlo.multiply %mean, %tenth : tensor<16xf32>
  %moved = stablehlo.add %average, %share : tensor<16xf32>
  return %new, %moved : tensor<16x16xf32>, tensor<16xf32>
}
