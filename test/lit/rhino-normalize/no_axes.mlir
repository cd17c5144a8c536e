// RUN: rhino-opt --rhino-normalize %s --split-input-file | filecheck %s
// RUN: rhino-opt --rhino-normalize %s --split-input-file --remarks-filter=rhino-normalize -o /dev/null 2>&1 | filecheck %s --check-prefix=REMARK
// A sharding on a mesh without axes stays, whatever that is called; what JAX puts on its own on one device goes, with a remark where it
// would have kept something whole.

sdy.mesh @e = <[]>

// CHECK-LABEL: func.func @kept(
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<mesh<[]>, [{}, {?}]>}
// CHECK-SAME: -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<mesh<[]>, [{}, {}]>})
// CHECK-NEXT: %[[C:.*]] = sdy.sharding_constraint %[[A]] <mesh<[]>, [{}, {}]>
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[C]] {sdy.sharding = #sdy.sharding_per_value<[<mesh<[]>, [{?}, {}]>]>}
// CHECK-NEXT: return %[[T]]
func.func @kept(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@e, [{}, {?}]>})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@e, [{}, {}]>}) {
  %c = sdy.sharding_constraint %a <@e, [{}, {}]> : tensor<8x16xf32>
  %open = sdy.sharding_constraint %c <@e, [{?}, {?}]> : tensor<8x16xf32>
  %t = stablehlo.tanh %open {sdy.sharding = #sdy.sharding_per_value<[<@e, [{?}, {}]>]>} : tensor<8x16xf32>
  return %t : tensor<8x16xf32>
}

// -----

sdy.mesh @empty_mesh = <[]>

// REMARK: no_axes.mlir:37:19: remark: {{.*}} the sharding of argument 0 "arg0" is dropped: on JAX's mesh without axes
// REMARK-SAME: pin it (--pin='arg0=[{}, {}]')
// REMARK: the sharding of result 0 is dropped
// REMARK-NOT: remark
// CHECK-LABEL: func.func @of_jax(
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<8x16xf32>,
// CHECK-SAME: %[[S:[a-z0-9]+]]: tensor<f32>,
// CHECK-SAME: %[[K:[a-z0-9]+]]: tensor<2xui32>)
// CHECK-SAME: -> (tensor<8x16xf32>, tensor<2xui32>)
// CHECK-NEXT: %[[C:.*]] = sdy.sharding_constraint %[[A]] <mesh<[]>, [{}, {}]>
// CHECK-NEXT: return %[[C]], %[[K]]
func.func @of_jax(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}, {}]>},
                  %s: tensor<f32> {sdy.sharding = #sdy.sharding<@empty_mesh, []>},
                  %k: tensor<2xui32>)
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}, {}]>}, tensor<2xui32>) {
  %c = sdy.sharding_constraint %a <@empty_mesh, [{}, {}]> : tensor<8x16xf32>
  %key = sdy.sharding_constraint %k <@empty_mesh, [{}]> : tensor<2xui32>
  return %c, %key : tensor<8x16xf32>, tensor<2xui32>
}
