// RUN: rhino-opt --auto-shard --cluster=cpu8 %s | filecheck %s
// RUN: not rhino-opt --auto-shard --cluster=cpu8 --pin='x=[{"x"}, {}]' %s -o /dev/null 2>&1 | filecheck %s --check-prefix=AGAINST
// A closed sharding on a mesh without axes keeps a tensor whole on every device: an argument, which would be split otherwise, and what a
// constraint speaks of. A pin against it is refused.

sdy.mesh @e = <[]>

// AGAINST: error: [RHI-SHARD-001] the sharding of argument 0 "x" contradicts
// AGAINST: against it stands #sdy.sharding<mesh<[]>, [{}, {}]>, of the module

// CHECK: sdy.mesh @mesh = <["x"=8]>
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
// CHECK-SAME: %[[Y:[a-z0-9]+]]: tensor<64x8xf32>
// CHECK-SAME: -> (tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
// CHECK-NEXT: stablehlo.add %[[X]], %[[X]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[Y]]
// CHECK-NEXT: sdy.sharding_constraint %[[T]] <mesh<[]>, [{}, {}]>
func.func @main(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@e, [{}, {}]>} loc("x"), %y: tensor<64x8xf32>)
    -> (tensor<64x8xf32>, tensor<64x8xf32>, tensor<64x8xf32>) {
  %0 = stablehlo.add %x, %x : tensor<64x8xf32>
  %1 = stablehlo.tanh %y : tensor<64x8xf32>
  %2 = sdy.sharding_constraint %1 <@e, [{}, {}]> : tensor<64x8xf32>
  return %0, %1, %2 : tensor<64x8xf32>, tensor<64x8xf32>, tensor<64x8xf32>
}
