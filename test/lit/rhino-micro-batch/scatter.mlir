// RUN: rhino-opt --micro-batches=2 %s | filecheck %s
// Rows that are added to a sum over the batch are added to zeros first: both sums are then of parts.

// CHECK-LABEL: func.func @main
// CHECK:       stablehlo.while({{.*}}) : tensor<i32>, tensor<6xf32>
// CHECK:         %[[FIRST:.*]] = stablehlo.dot_general {{.*}} : (tensor<4x6xf32>, tensor<4xf32>) -> tensor<6xf32>
// CHECK:         %[[SECOND:.*]] = "stablehlo.scatter"
// CHECK:         %[[BOTH:.*]] = stablehlo.add %[[FIRST]], %[[SECOND]] : tensor<6xf32>
func.func @main(%w: tensor<6xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x6xf32>, %i: tensor<8x1xi32>, %u: tensor<8xf32>) -> tensor<6xf32> {
  %s = stablehlo.dot_general %x, %u, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8xf32>) -> tensor<6xf32>
  %g = "stablehlo.scatter"(%s, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<6xf32>, tensor<8x1xi32>, tensor<8xf32>) -> tensor<6xf32>
  %new = stablehlo.subtract %w, %g : tensor<6xf32>
  return %new : tensor<6xf32>
}
