// RUN: rhino-opt --auto-shard --cluster=v100x8 %s | filecheck %s
// A closed dim stays as it is; an open one, `{?}`, is left to the search. The batch dim would be as good, but it is closed.

// CHECK-LABEL: func.func @columns(
// CHECK-SAME: -> (tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
// CHECK-NEXT: %[[Y:.*]] = stablehlo.dot_general %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}
// CHECK-NEXT: return %[[Y]]
sdy.mesh @mesh = <["x"=4]>
func.func @columns(%x: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %w: tensor<512x512xf32>)
    -> (tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {?}]>}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  return %y : tensor<512x512xf32>
}
