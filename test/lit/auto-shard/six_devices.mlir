// RUN: rhino-opt --auto-shard --cluster=cpu8 --mesh=6 %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=cpu8 --mesh=2x3 %s | filecheck %s --check-prefix=GRID
// RUN: rhino-opt --auto-shard --cluster=cpu8 --mesh=2x3 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=6 --form=localized
// A number of devices need be no power of two. What an axis does not divide is not split along it: 600 rows go over all six devices, 8
// columns only over the axis of two, and 25 over none.

// CHECK: sdy.mesh @mesh = <["x"=6]>
// CHECK-LABEL: func.func @rows(
// CHECK: stablehlo.tanh %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<600x256xf32>
// CHECK: stablehlo.cosine %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : tensor<25x80000xf32>

// GRID: sdy.mesh @mesh = <["x"=2, "y"=3]>
// GRID-LABEL: func.func @rows(
// GRID: stablehlo.tanh %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>} : tensor<600x256xf32>
// GRID: stablehlo.cosine %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<25x80000xf32>
func.func @rows(%x: tensor<600x256xf32>, %y: tensor<25x80000xf32>) -> (tensor<600x256xf32>, tensor<25x80000xf32>) {
  %a = stablehlo.tanh %x : tensor<600x256xf32>
  %b = stablehlo.cosine %y : tensor<25x80000xf32>
  return %a, %b : tensor<600x256xf32>, tensor<25x80000xf32>
}
