// RUN: rhino-opt --auto-shard --cluster=v100x8 %s | filecheck %s
// RUN: rhino-opt --auto-shard --localize --cluster=v100x8 %s | filecheck %s --check-prefix=LOCAL
// RUN: rhino-opt --auto-shard --cluster=v100x8 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=4 --form=localized
// Each axis does its own work: the batch is split over `data`, the weights over `model`, so that every product is shared by all four
// devices. What is sent is the sum of the result along `model`, between pairs of neighbours.

// CHECK-LABEL: func.func @mlp(
// CHECK-NEXT: %[[HIDDEN:.*]] = stablehlo.dot_general %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {"model"}]>]>}
// CHECK-NEXT: %[[ACTIVE:.*]] = stablehlo.tanh %[[HIDDEN]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {"model"}]>]>}
// CHECK-NEXT: %[[OUT:.*]] = stablehlo.dot_general %[[ACTIVE]], %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}
// CHECK-NEXT: return %[[OUT]]

// LOCAL-LABEL: func.func @mlp(
// LOCAL-NEXT: %[[HIDDEN:.*]] = stablehlo.dot_general {{.*}} -> tensor<32x1024xf32>
// LOCAL-NEXT: %[[ACTIVE:.*]] = stablehlo.tanh %[[HIDDEN]]
// LOCAL-NEXT: %[[PART:.*]] = stablehlo.dot_general %[[ACTIVE]], {{.*}} -> tensor<32x512xf32>
// LOCAL-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[PART]]) <{{{.*}}replica_groups = dense<{{\[\[}}0, 1], [2, 3]]>
// LOCAL: return %[[SUM]]
sdy.mesh @mesh = <["data"=2, "model"=2]>
func.func @mlp(%x: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
               %v: tensor<512x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
               %w: tensor<2048x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>})
    -> (tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
  %hidden = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x2048xf32>) -> tensor<64x2048xf32>
  %active = stablehlo.tanh %hidden : tensor<64x2048xf32>
  %out = stablehlo.dot_general %active, %w, contracting_dims = [1] x [0] : (tensor<64x2048xf32>, tensor<2048x512xf32>) -> tensor<64x512xf32>
  return %out : tensor<64x512xf32>
}
