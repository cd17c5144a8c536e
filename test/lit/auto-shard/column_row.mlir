// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=4 %s | filecheck %s
// RUN: rhino-opt --auto-shard --localize --cluster=v100x8 --mesh=4 %s 2>&1 >%t.mlir | filecheck %s --check-prefix=SENT
// With a small batch and huge weights, the first product splits its columns and the second its rows: the activations between
// them stay where they are, and only the sum of the small result is sent.

// CHECK-LABEL: func.func @mlp(
// CHECK-NEXT: %[[HIDDEN:.*]] = stablehlo.dot_general %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}
// CHECK-NEXT: %[[ACTIVE:.*]] = stablehlo.tanh %[[HIDDEN]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}
// CHECK-NEXT: %[[OUT:.*]] = stablehlo.dot_general %[[ACTIVE]], %{{.*}} {{.*}}sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: return %[[OUT]]

// SENT: collectives per step and device
// SENT-NEXT: reduce_scatter 1 64 KiB
// SENT-NEXT: total 1 64 KiB
func.func @mlp(%x: tensor<16x1024xf32>, %v: tensor<1024x4096xf32>, %w: tensor<4096x1024xf32>) -> tensor<16x1024xf32> {
  %hidden = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<16x1024xf32>, tensor<1024x4096xf32>) -> tensor<16x4096xf32>
  %active = stablehlo.tanh %hidden : tensor<16x4096xf32>
  %out = stablehlo.dot_general %active, %w, contracting_dims = [1] x [0] : (tensor<16x4096xf32>, tensor<4096x1024xf32>) -> tensor<16x1024xf32>
  return %out : tensor<16x1024xf32>
}
