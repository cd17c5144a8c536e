// RUN: rhino-opt --auto-shard --localize --cluster=v100x8 %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=v100x8 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=4 --form=localized --int-range=4096
// A table that is split by its rows is not gathered: each device looks up what it holds, zero elsewhere, and the sum is sent. So the
// small result travels, and not the large table.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[TABLE:.*]]: tensor<1024x64xf32>
// CHECK: %[[ROWS:.*]] = "stablehlo.gather"(%[[TABLE]], %{{.*}}) {{.*}} : (tensor<1024x64xf32>, tensor<16x1xi64>) -> tensor<16x64xf32>
// CHECK: %[[MINE:.*]] = stablehlo.select %{{.*}}, %[[ROWS]], %{{.*}} : tensor<16x64xi1>, tensor<16x64xf32>
// CHECK-NEXT: %[[SUM:.*]] = "stablehlo.reduce_scatter"(%[[MINE]])
// CHECK: }) : (tensor<16x64xf32>) -> tensor<4x64xf32>
// CHECK-NEXT: return %[[SUM]]
sdy.mesh @mesh = <["x"=4]>
func.func @main(%table: tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %ids: tensor<16x1xi32>)
    -> (tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %rows = "stablehlo.gather"(%table, %ids) {
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 64>} : (tensor<4096x64xf32>, tensor<16x1xi32>) -> tensor<16x64xf32>
  return %rows : tensor<16x64xf32>
}
