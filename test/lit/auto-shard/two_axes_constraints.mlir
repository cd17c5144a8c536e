// RUN: rhino-opt --auto-shard --cluster=v100x8 %s | filecheck %s
// RUN: rhino-opt --auto-shard --localize --cluster=v100x8 %s | filecheck %s --check-prefix=LOCAL
// RUN: rhino-opt --auto-shard --cluster=v100x8 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=4 --form=localized
// One dim may be split over both axes, the outer one with the larger blocks. To get from there to the columns over `x` that the sum
// wants, the axes change places (devices 1 and 2 swap their rows), and rows are exchanged for columns along `x`.

// CHECK-LABEL: func.func @rows_of_four(
// CHECK-SAME: %[[A:.*]]: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}
// CHECK-SAME: %[[B:.*]]: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}
// CHECK-SAME: -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[A]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>}
// CHECK-NEXT: %[[C:.*]] = stablehlo.add %[[T]], %[[B]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {"x"}]>]>}
// CHECK-NEXT: return %[[C]]

// LOCAL-LABEL: func.func @rows_of_four(
// LOCAL-NEXT: %[[T:.*]] = stablehlo.tanh %{{.*}} : tensor<4x16xf32>
// LOCAL-NEXT: %[[P:.*]] = "stablehlo.collective_permute"(%[[T]]) <{{{.*}}source_target_pairs = dense<{{\[\[}}0, 0], [1, 2], [2, 1], [3, 3]]>
// LOCAL-NEXT: %[[E:.*]] = "stablehlo.all_to_all"(%[[P]]) <{{{.*}}replica_groups = dense<{{\[\[}}0, 2], [1, 3]]> {{.*}} -> tensor<8x8xf32>
// LOCAL-NEXT: %[[C:.*]] = stablehlo.add %[[E]], %{{.*}} : tensor<8x8xf32>
// LOCAL-NEXT: %[[G:.*]] = "stablehlo.all_gather"(%[[C]]) <{{{.*}}replica_groups = dense<{{\[\[}}0, 1], [2, 3]]> {{.*}} -> tensor<16x8xf32>
// LOCAL-NEXT: return %[[G]]
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @rows_of_four(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>},
                        %b: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>})
    -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %t = stablehlo.tanh %a : tensor<16x16xf32>
  %c = stablehlo.add %t, %b : tensor<16x16xf32>
  return %c : tensor<16x16xf32>
}
