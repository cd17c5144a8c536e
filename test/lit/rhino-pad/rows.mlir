// RUN: rhino-opt --pass-pipeline='rhino-pad{pad=arg0 parts=4}' %s | filecheck %s
// RUN: rhino-opt --pass-pipeline='rhino-pad{pad=arg0 parts=4}' %s | rhino-run --compare=%s
// Rows are read and added to by index: what lay behind the last of ten is still the last, where it is read, and nowhere, where it is written.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[E:.*]]: tensor<12x2xf32> {rhino.padded = array<i64: 10, 2>, tf.aliasing_output = 0 : i32}, %[[I:.*]]: tensor<3x1xi32>
// CHECK: %[[OUT:.*]] = stablehlo.constant dense<-1> : tensor<3x1xi32>
// CHECK: %[[LAST:.*]] = stablehlo.constant dense<9> : tensor<3x1xi32>
// CHECK: %[[AT:.*]] = stablehlo.minimum %[[I]], %[[LAST]] : tensor<3x1xi32>
// CHECK: %[[ROWS:.*]] = "stablehlo.gather"(%[[E]], %[[AT]]) <{{.*}}slice_sizes = array<i64: 1, 2>
// CHECK: %[[FAR:.*]] = stablehlo.compare GT, %[[I]], %[[LAST]]
// CHECK: %[[TO:.*]] = stablehlo.select %[[FAR]], %[[OUT]], %[[I]]
// CHECK: "stablehlo.scatter"(%[[E]], %[[TO]], %[[ROWS]])
func.func @main(%e: tensor<10x2xf32> {tf.aliasing_output = 0 : i32}, %i: tensor<3x1xi32>) -> tensor<10x2xf32> {
  %rows = "stablehlo.gather"(%e, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>}> : (tensor<10x2xf32>, tensor<3x1xi32>) -> tensor<3x2xf32>
  %new = "stablehlo.scatter"(%e, %i, %rows) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %sum = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) : (tensor<10x2xf32>, tensor<3x1xi32>, tensor<3x2xf32>) -> tensor<10x2xf32>
  return %new : tensor<10x2xf32>
}
