// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// What is indexed by the position of the index itself is a batching dim, of a gather and of the scatter behind it.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[Q:[a-z0-9]+]]: tensor<8x4xf32>, %[[A:[a-z0-9]+]]: tensor<8xi32>
// CHECK-DAG: %[[COLUMN:.*]] = stablehlo.reshape %[[A]] : (tensor<8xi32>) -> tensor<8x1xi32>
// CHECK-DAG: %[[AT:.*]] = stablehlo.concatenate
// CHECK: %[[TAKEN:.*]] = "stablehlo.gather"(%[[Q]], %[[COLUMN]]) <{dimension_numbers = #stablehlo.gather<
// CHECK-SAME: collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1>
// CHECK: "stablehlo.scatter"(%[[Q]], %[[COLUMN]], %[[TAKEN]]) <{
// CHECK-SAME: inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>
func.func @main(%q: tensor<8x4xf32>, %a: tensor<8xi32>, %p: tensor<9x4xf32>) -> (tensor<8x4xf32>, tensor<8xf32>) {
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %zero = stablehlo.constant dense<0> : tensor<8xi32>
  %size = stablehlo.constant dense<8> : tensor<8xi32>
  %below = stablehlo.compare LT, %count, %zero, SIGNED : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
  %from_end = stablehlo.add %count, %size : tensor<8xi32>
  %row = stablehlo.select %below, %from_end, %count : tensor<8xi1>, tensor<8xi32>
  %rows = stablehlo.broadcast_in_dim %row, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
  %columns = stablehlo.reshape %a : (tensor<8xi32>) -> tensor<8x1xi32>
  %at = stablehlo.concatenate %rows, %columns, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  %taken = "stablehlo.gather"(%q, %at) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<8x4xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  %sum = "stablehlo.scatter"(%q, %at, %taken) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %z = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %z : tensor<f32>
  }) : (tensor<8x4xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x4xf32>
  // Some of the rows are not each their own.
  // CHECK: "stablehlo.gather"({{.*}}, %[[AT]])
  // CHECK-SAME: start_index_map = [0, 1]
  %some = "stablehlo.gather"(%p, %at) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<9x4xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  return %sum, %some : tensor<8x4xf32>, tensor<8xf32>
}
