// RUN: rhino-opt --auto-shard --cluster=v100x8 %s | filecheck %s
// The user's shardings are constraints: of an argument, of an op's result, of a `sdy.sharding_constraint`, of a result of the
// function. Here they force an all-to-all that the search would never choose by itself.

// CHECK-LABEL: func.func @columns_then_rows(
// CHECK-SAME: %[[X:.*]]: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
// CHECK-SAME: -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
// CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh %[[X]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}
// CHECK-NEXT: %[[ROWS:.*]] = sdy.sharding_constraint %[[Y]] <@mesh, [{"x"}, {}]>
// CHECK-NEXT: %[[Z:.*]] = stablehlo.exponential %[[ROWS]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: return %[[Z]]
sdy.mesh @mesh = <["x"=4]>
func.func @columns_then_rows(%x: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %y = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<64x64xf32>
  %rows = sdy.sharding_constraint %y <@mesh, [{"x"}, {}]> : tensor<64x64xf32>
  %z = stablehlo.exponential %rows {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<64x64xf32>
  return %z : tensor<64x64xf32>
}
