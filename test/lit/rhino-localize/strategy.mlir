// RUN: rhino-opt --rhino-localize %s | filecheck %s
// RUN: rhino-run %s --compare=%s --devices=4 --form=localized
// An op does what its `rhino.strategy` says: this product of two whole operands is a sum over the split factor `k`, each device
// cutting its part of both, and its collective sums and scatters in one.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[A:.*]]: tensor<8x64xf32> {{.*}}, %[[B:.*]]: tensor<64x8xf32>
// CHECK: %[[ROWS:.*]] = stablehlo.dynamic_slice %[[A]], {{.*}} -> tensor<8x16xf32>
// CHECK: %[[COLUMNS:.*]] = stablehlo.dynamic_slice %[[B]], {{.*}} -> tensor<16x8xf32>
// CHECK-NEXT: %[[PART:.*]] = stablehlo.dot_general %[[ROWS]], %[[COLUMNS]], {{.*}} -> tensor<8x8xf32>
// CHECK-NEXT: %[[SUM:.*]] = "stablehlo.reduce_scatter"(%[[PART]])
// CHECK: }) : (tensor<8x8xf32>) -> tensor<2x8xf32>
// CHECK-NEXT: return %[[SUM]]
sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<8x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
                %b: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %p = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      {rhino.strategy = "k", sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<8x64xf32>, tensor<64x8xf32>) -> tensor<8x8xf32>
  return %p : tensor<8x8xf32>
}
