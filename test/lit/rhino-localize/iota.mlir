// RUN: rhino-opt --rhino-localize %s | filecheck %s
// RUN: rhino-run %s --compare=%s --devices=4 --form=localized
// An iota that is split along its own dim goes on from where the device's block starts; it does not start at zero again.

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[COUNT:.*]] = stablehlo.iota dim = 0 : tensor<4xi32>
// CHECK-NEXT: %[[DEVICE:.*]] = stablehlo.partition_id
// CHECK: stablehlo.constant dense<[0, 4, 8, 12]>
// CHECK: %[[START:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<i32>) -> tensor<4xi32>
// CHECK-NEXT: %[[I:.*]] = stablehlo.add %[[COUNT]], %[[START]]
// CHECK-NEXT: return %[[I]]
sdy.mesh @mesh = <["x"=4]>
func.func @main() -> (tensor<16xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %i = stablehlo.iota dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<16xi32>
  return %i : tensor<16xi32>
}
