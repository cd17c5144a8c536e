// RUN: rhino-opt %s --rhino-normalize --rhino-pin --scope='moe=split(4)' --scope='layer_*=replicate' | filecheck %s
// RUN: rhino-opt %s --rhino-normalize --rhino-pin --constraints=%S/Inputs/scopes.toml | filecheck %s
// RUN: rhino-opt %s --auto-shard --cluster=v100x8 --mesh=2x4 --scope='moe=split(4)' --scope='layer_*=replicate' | filecheck %s --check-prefix=CHOSEN
// RUN: rhino-opt %s --auto-shard --cluster=v100x8 --mesh=auto --scope='layer_1=replicate(4)' | filecheck %s --check-prefix=MESH
// An op is in the scopes that its location names, whatever transforms them, and in those of the call that it was inlined from; no axis is
// said. Products of a scope are split over its axes, by the batch or by anything else, and what a replica reads is whole. A mesh that is
// left open is one that has axes for them.

// CHECK-LABEL: module
// CHECK-NEXT: func.func @main(
// CHECK-NEXT: stablehlo.dot_general {{.*}} {rhino.provenance = [{{.*}}layer_*=replicate{{.*}}, {{.*}}moe=split(4){{.*}}], rhino.scopes = ["replicate", "split(4)"]}
// CHECK-NEXT: stablehlo.tanh {{.*}} rhino.scopes = ["replicate"]}
// CHECK-NEXT: stablehlo.dot_general {{.*}} rhino.scopes = ["split(4)"]}
// CHECK-NEXT: stablehlo.subtract %{{[^{]*}} : tensor<64x64xf32>

// CHOSEN: func.func @main(%[[W:.*]]: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>
// CHOSEN: stablehlo.dot_general %[[X:.*]], %[[W]], {{.*}}rhino.scopes = ["replicate", "split(4)"], sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>
// CHOSEN-NEXT: %[[T:.*]] = stablehlo.tanh {{.*}}rhino.scopes = ["replicate"], sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>
// CHOSEN-NEXT: stablehlo.dot_general %[[X]], %[[T]], {{.*}}rhino.scopes = ["split(4)"], sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>

// MESH: sdy.mesh @mesh = <["x"={{[24]}}, "y"={{[24]}}]>
func.func @main(%w: tensor<64x64xf32> {tf.aliasing_output = 0 : i32} loc("w"), %x: tensor<32x64xf32> loc("x")) -> tensor<64x64xf32> {
  %h = call @inner(%x, %w) : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32> loc("jit(step)/jvp(layer_1)/closed_call")
  %t = stablehlo.tanh %h : tensor<32x64xf32> loc("jit(step)/jvp(layer_1)/tanh")
  %g = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32> loc("jit(step)/transpose(jvp(moe))/dot_general")
  %n = stablehlo.subtract %w, %g : tensor<64x64xf32> loc("jit(step)/sub")
  return %n : tensor<64x64xf32>
}
func.func private @inner(%x: tensor<32x64xf32>, %w: tensor<64x64xf32>) -> tensor<32x64xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32> loc("moe/dot_general"("moe"("m.py":1:2)))
  return %h : tensor<32x64xf32>
}
