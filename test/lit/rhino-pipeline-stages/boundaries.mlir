// RUN: rhino-opt --rhino-pipeline-stages="stages=2" %s | filecheck %s
// RUN: not rhino-opt --rhino-pipeline-stages="stages=3" %s 2>&1 | filecheck %s --check-prefix=OTHER
// What is before a boundary is in the stage before it, what is behind it behind, however the work is divided; the boundary itself is gone.
// The gradient of the weight is where its layer is, for it follows from the boundary in the backward pass.

// OTHER: error: [RHI-STAGE-003] boundaries in the model make 2 stages, and 3 were requested

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[FIRST:.*]] = stablehlo.dot_general %{{.*}} {rhino.virtual_stage = 0 : i64}
// CHECK-NEXT: %[[SECOND:.*]] = stablehlo.dot_general %[[FIRST]], {{.*}} {rhino.virtual_stage = 1 : i64}
// CHECK-NEXT: %[[THIRD:.*]] = stablehlo.dot_general %[[SECOND]], {{.*}} {rhino.virtual_stage = 1 : i64}
// CHECK-NEXT: %[[GRADIENT:.*]] = stablehlo.dot_general %[[THIRD]], {{.*}} {rhino.virtual_stage = 1 : i64}
// CHECK-NEXT: %[[WEIGHT:.*]] = stablehlo.dot_general {{.*}}, %[[GRADIENT]], {{.*}} {rhino.virtual_stage = 2 : i64}
// CHECK-NEXT: return %[[THIRD]], %[[WEIGHT]]
func.func @main(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %first = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %cut = stablehlo.optimization_barrier {rhino.stage_boundary = "forward"} %first : tensor<8x8xf32>
  %second = stablehlo.dot_general %cut, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %third = stablehlo.dot_general %second, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %gradient = stablehlo.dot_general %third, %w, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %back = stablehlo.optimization_barrier {rhino.stage_boundary = "back"} %gradient : tensor<8x8xf32>
  %weight = stablehlo.dot_general %x, %back, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %third, %weight : tensor<8x8xf32>, tensor<8x8xf32>
}
