// RUN: rhino-opt --localize --split-input-file %s | filecheck %s
// A scatter addresses the block that a device holds: an index of a dim that its window covers stays, and nothing folds it with the cut.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func public @rows(
// CHECK-SAME: %[[A:.*]]: tensor<16x8xf32> {{.*}}, %[[I:.*]]: tensor<1xi32>
// CHECK: %[[CUT:.*]] = stablehlo.dynamic_slice %[[A]], {{.*}}, sizes = [4, 8]
// CHECK: %[[WIDE:.*]] = stablehlo.convert %[[I]] : (tensor<1xi32>) -> tensor<1xi64>
// CHECK: %[[OFFSET:.*]] = stablehlo.broadcast_in_dim {{.*}} -> tensor<1xi64>
// CHECK: %[[INDEX:.*]] = stablehlo.subtract %[[WIDE]], %[[OFFSET]]
// CHECK: %[[BLOCK:.*]] = stablehlo.optimization_barrier %[[CUT]]
// CHECK: "stablehlo.scatter"(%[[BLOCK]], %[[INDEX]],
func.func public @rows(%a: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %i: tensor<1xi32>, %u: tensor<8xf32>)
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = "stablehlo.scatter"(%a, %i, %u) ({
  ^bb0(%old: tensor<f32>, %new: tensor<f32>):
    stablehlo.return %new : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>,
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<16x8xf32>, tensor<1xi32>, tensor<8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// -----

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func public @covered(
// CHECK-SAME: %{{.*}}: tensor<16x2xf32> {{.*}}, %[[I:.*]]: tensor<2xi32>
// CHECK: %[[WIDE:.*]] = stablehlo.convert %[[I]] : (tensor<2xi32>) -> tensor<2xi64>
// CHECK: "stablehlo.scatter"(%{{.*}}, %[[WIDE]],
func.func public @covered(%a: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %i: tensor<2xi32>,
    %u: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = "stablehlo.scatter"(%a, %i, %u) ({
  ^bb0(%old: tensor<f32>, %new: tensor<f32>):
    stablehlo.return %new : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 1]>,
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : (tensor<16x8xf32>, tensor<2xi32>, tensor<8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}
