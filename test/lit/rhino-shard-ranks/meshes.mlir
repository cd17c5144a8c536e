// RUN: rhino-opt --pass-pipeline='rhino-shard-ranks{meshes=2x2;2 inner="func.func(sdy-populate-op-sharding-rules),rhino-choose-shardings,func.func(sdy-drop-sharding-rules)"}' %s | filecheck %s
// A step is sharded once on each distinct mesh of its stages. How it lies on each stands side by side, with what the user has said before, and
// that for the first stage is shown.

// CHECK: module attributes {{.*}}rhino.stage_meshes = ["mesh_0", "mesh_1"]
// CHECK: sdy.mesh @mesh_0 = <["x"=2, "y"=2]>
// CHECK: sdy.mesh @mesh_1 = <["x"=2]>
// CHECK: @main(%[[X:.*]]: tensor<4096x4096xf32> {rhino.mesh_views = [
// CHECK-SAME: {sdy.sharding = #sdy.sharding<@mesh_0, [{}, {"x", "y"}]>},
// CHECK-SAME: {sdy.sharding = #sdy.sharding<@mesh_1, [{}, {"x"}]>},
// CHECK-SAME: {sdy.sharding = #sdy.sharding<mesh<[]>, [{}, {?}]>}],
// CHECK-SAME: sdy.sharding = #sdy.sharding<@mesh_0, [{}, {"x", "y"}]>}
// CHECK: stablehlo.tanh %[[X]] {rhino.mesh_views = [
// CHECK-SAME: {sdy.sharding = #sdy.sharding_per_value<[<@mesh_0, [{}, {"x", "y"}]>]>},
// CHECK-SAME: {sdy.sharding = #sdy.sharding_per_value<[<@mesh_1, [{}, {"x"}]>]>}, {}],
// CHECK-SAME: sdy.sharding = #sdy.sharding_per_value<[<@mesh_0, [{}, {"x", "y"}]>]>}
func.func @main(%x: tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<mesh<[]>, [{}, {?}]>} loc("x")) -> tensor<4096x4096xf32> {
  %y = stablehlo.tanh %x : tensor<4096x4096xf32>
  return %y : tensor<4096x4096xf32>
}
