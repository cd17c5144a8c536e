// RUN: rhino-opt %s --pass-pipeline='builtin.module(rhino-normalize, func.func(cse), auto-shard{cluster=cpu4 mesh=2})' | filecheck %s
// RUN: rhino-opt %s --pass-pipeline='rhino-normalize,auto-shard{cluster=cpu4 mesh="2"}' | filecheck %s
// RUN: rhino-opt %s --rhino-normalize --auto-shard="cluster=cpu4 mesh=2" | filecheck %s
// RUN: rhino-opt -auto-shard -cluster=cpu4 -mesh 2 -O2 %s | filecheck %s
// A pipeline mixes our passes and pipelines with MLIR's own, in the textual form or as options, which may have one dash.

// CHECK: sdy.mesh @mesh = <["x"=2]>
// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<4096xf32>
// CHECK-NEXT: return %[[Y]]
func.func @main(%x: tensor<4096xf32>) -> tensor<4096xf32> {
  %y = stablehlo.tanh %x : tensor<4096xf32>
  %dead = stablehlo.tanh %x : tensor<4096xf32>
  return %y : tensor<4096xf32>
}
