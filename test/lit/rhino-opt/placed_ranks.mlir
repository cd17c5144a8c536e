// RUN: rhino-opt %s --auto-parallel '--cluster=cpu4@0,2,1,3' --stages=2 --micro-batches=2 --mesh=2 --plan=%t 2>&1 | filecheck %s
// RUN: rhino-plan explain %t | filecheck %s --check-prefix=KEPT
// RUN: cat %t/plan.json | filecheck %s --check-prefix=FILE
// RUN: not rhino-opt %s --auto-parallel '--cluster=cpu4@0,2,2' --stages=2 --micro-batches=2 --mesh=2 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not rhino-opt %s --auto-parallel '--cluster=cpu4@0-7' --stages=2 --micro-batches=2 --mesh=2 2>&1 | filecheck %s --check-prefix=MORE
// Ranks take devices in the order that stands behind the cluster, and the plan keeps which they are.

// CHECK: 2 stages on 2 ranks of mesh x=2, 2 micro-batches, 1f1b, ranks on devices 0,2; 1,3: step
// KEPT: 2 stages on 2 ranks of mesh x=2, 2 micro-batches, 1f1b, ranks on devices 0,2; 1,3, for cpu4
// FILE: "version": 5,
// FILE: "devices": [
// FILE-NEXT: [0, 2],
// FILE-NEXT: [1, 3]
// TWICE: error: [RHI-CLUSTER-001] the order of devices names device 2 twice, and cluster 'cpu4' has devices 0 to 3
// TWICE-NEXT: note: to fix: name each device once, as 0-3,8-11,4-7,12-15
// MORE: error: [RHI-CLUSTER-001] the order of devices names device 7, and cluster 'cpu4' has devices 0 to 3
func.func public @main(%w: tensor<256x256xf32> {tf.aliasing_output = 0 : i32}, %v: tensor<256x256xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<64x256xf32>)
    -> (tensor<256x256xf32>, tensor<256x256xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %t = stablehlo.tanh %h : tensor<64x256xf32>
  %y = stablehlo.dot_general %t, %v, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %loss = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<64x256xf32>, tensor<f32>) -> tensor<f32>
  %dv = stablehlo.dot_general %t, %y, contracting_dims = [0] x [0] : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<256x256xf32>
  %dt = stablehlo.dot_general %y, %v, contracting_dims = [1] x [1] : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %dh = stablehlo.multiply %dt, %t : tensor<64x256xf32>
  %dw = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<256x256xf32>
  %w1 = stablehlo.subtract %w, %dw : tensor<256x256xf32>
  %v1 = stablehlo.subtract %v, %dv : tensor<256x256xf32>
  return %w1, %v1, %loss : tensor<256x256xf32>, tensor<256x256xf32>, tensor<f32>
}
