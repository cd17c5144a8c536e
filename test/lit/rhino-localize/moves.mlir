// RUN: rhino-opt --rhino-localize --split-input-file %s | filecheck %s
// Each change of sharding is one collective: parts are gathered, exchanged, or cut from what is everywhere.

// CHECK-LABEL: func.func @gather(
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32>
// CHECK-NEXT: %[[ALL:.*]] = "stablehlo.all_gather"(%[[X]]) <{all_gather_dim = 0 : i64, {{.*}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
// CHECK-NEXT: return %[[ALL]]
sdy.mesh @mesh = <["x"=4]>
func.func @gather(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  return %x : tensor<16x8xf32>
}

// -----

// CHECK-LABEL: func.func @exchange(
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32>
// CHECK-NEXT: %[[T:.*]] = "stablehlo.all_to_all"(%[[X]]) <{{.*}}concat_dimension = 0 : i64, {{.*}}split_dimension = 1 : i64}> : (tensor<4x8xf32>) -> tensor<16x2xf32>
// CHECK-NEXT: return %[[T]]
sdy.mesh @mesh = <["x"=4]>
func.func @exchange(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %x : tensor<16x8xf32>
}

// -----

// CHECK-LABEL: func.func @cut(
// CHECK-SAME: %[[X:.*]]: tensor<16x8xf32>
// CHECK: %[[PART:.*]] = stablehlo.dynamic_slice %[[X]], %{{.*}}, %{{.*}}, sizes = [4, 8] : {{.*}} -> tensor<4x8xf32>
// CHECK-NEXT: return %[[PART]]
sdy.mesh @mesh = <["x"=4]>
func.func @cut(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  return %x : tensor<16x8xf32>
}
