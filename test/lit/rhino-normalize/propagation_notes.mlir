// RUN: rhino-opt --pass-pipeline='builtin.module(sdy-aggressive-propagate{debug-sharding-origins=true debug-propagation-edge-sharding=true})' %s -o %t
// RUN: cat %t | filecheck %s --check-prefix=NOTES
// RUN: rhino-opt --pass-pipeline='builtin.module(rhino-normalize)' %t | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=cpu2 %t -o %t.planned
// RUN: rhino-run %t.planned --compare=%s
// What Shardy notes of its propagation, where it is asked to, is gone: XLA refuses a module whose notes speak of shardings that are not there.

// NOTES: sdy.propagation_edges
// NOTES: sdy.sharding_origins
// CHECK-LABEL: func.func @main
// CHECK-SAME:  (%[[A:.*]]: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %[[B:.*]]: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>})
// CHECK-NEXT:  %[[SUM:.*]] = stablehlo.add %[[A]], %[[B]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {?}]>]>} : tensor<8x4xf32>
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %b: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.add %a, %b : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
