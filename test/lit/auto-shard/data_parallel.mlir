// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=4 %s | filecheck %s
// With a batch much larger than the weights, both products split the batch, and nothing is sent.

// CHECK-LABEL: func.func @mlp(
// CHECK: -> (tensor<8192x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
// CHECK-NEXT: %[[HIDDEN:.*]] = stablehlo.dot_general %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: %[[ACTIVE:.*]] = stablehlo.tanh %[[HIDDEN]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: %[[OUT:.*]] = stablehlo.dot_general %[[ACTIVE]], %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: return %[[OUT]]
func.func @mlp(%x: tensor<8192x256xf32>, %v: tensor<256x1024xf32>, %w: tensor<1024x256xf32>) -> tensor<8192x256xf32> {
  %hidden = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<8192x256xf32>, tensor<256x1024xf32>) -> tensor<8192x1024xf32>
  %active = stablehlo.tanh %hidden : tensor<8192x1024xf32>
  %out = stablehlo.dot_general %active, %w, contracting_dims = [1] x [0] : (tensor<8192x1024xf32>, tensor<1024x256xf32>) -> tensor<8192x256xf32>
  return %out : tensor<8192x256xf32>
}
