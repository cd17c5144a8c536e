// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=4 --remarks-filter='no sharding rule' --verify-diagnostics %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=4 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=4 --form=localized
// An op without a sharding rule runs whole on every device, and a remark says so; what it reads is whole there. Branches are such an op
// where they compute more than element by element.

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>}
// CHECK-NEXT: %[[Z:.*]] = "stablehlo.case"(%{{.*}}) ({
// CHECK-NEXT: stablehlo.dot_general %[[Y]], %[[Y]]
// CHECK: return %[[Z]]
func.func @main(%p: tensor<i32>, %x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %y = stablehlo.tanh %x : tensor<64x64xf32>
  // expected-remark@+1 {{[rhino-choose-shardings] 'stablehlo.case' has no sharding rule: it runs whole on every device}}
  %z = "stablehlo.case"(%p) ({
    %a = stablehlo.dot_general %y, %y, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    stablehlo.return %a : tensor<64x64xf32>
  }, {
    %b = stablehlo.cosine %y : tensor<64x64xf32>
    stablehlo.return %b : tensor<64x64xf32>
  }) : (tensor<i32>) -> tensor<64x64xf32>
  return %z : tensor<64x64xf32>
}
