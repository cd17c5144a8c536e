// RUN: rhino-opt --pass-pipeline='micro-batch{num=4},rhino-join-replicas{replicas=2 cluster=cpu2},rhino-split-replicas{replicas=3;1 cluster=cpu2}' %s | filecheck %s
// Each replica runs its own micro-batches by their numbers in the step, and one of them joins what both have.

// CHECK:      module attributes
// CHECK-SAME: gives = ["[[OWN:sum [0-9]]] of 0", "[[OTHER:sum [0-9]]] of 0"], phase = "accumulate", program = @accumulate_0, reads = ["arg0", "arg1"], stage = 0 : i64
// CHECK-SAME: phase = "accumulate", program = @accumulate_1, reads = ["arg0", "arg1"], stage = 1 : i64
// CHECK-SAME: phase = "apply", program = @apply_0, reads = ["[[OTHER]] of 0", "[[OTHER]] of 1", "arg0"], stage = 0 : i64
// CHECK-SAME: rhino.shares = array<i64: 3, 1>

// CHECK-LABEL: func.func private @accumulate_0
// CHECK:         %[[FROM:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK:         stablehlo.while(%{{.*}} = %[[FROM]]
// CHECK-SAME:      rhino.micro_batches = 3 : i64
// CHECK:           stablehlo.constant dense<3> : tensor<i32>
// CHECK-NEXT:      stablehlo.compare LT

// CHECK-LABEL: func.func private @accumulate_1
// CHECK:         %[[FROM:.*]] = stablehlo.constant dense<3> : tensor<i32>
// CHECK:         stablehlo.while(%{{.*}} = %[[FROM]]
// CHECK-SAME:      rhino.micro_batches = 1 : i64
// CHECK:           stablehlo.constant dense<4> : tensor<i32>
// CHECK-NEXT:      stablehlo.compare LT

// CHECK-LABEL: func.func private @apply_0
// CHECK-SAME:    %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[W:.*]]: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}
// CHECK-NEXT:    %[[G:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    %[[NEW:.*]] = stablehlo.subtract %[[W]], %[[G]]
// CHECK-NEXT:    return %[[NEW]]
func.func @main(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x4xf32>) -> (tensor<4x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %loss = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %new = stablehlo.subtract %w, %g : tensor<4x4xf32>
  return %new, %loss : tensor<4x4xf32>, tensor<f32>
}
