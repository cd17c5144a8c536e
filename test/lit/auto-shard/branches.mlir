// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=4 --remarks-filter='no sharding rule' --verify-diagnostics %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=4 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=4 --form=localized --int-range=3
// A branch with a product is a loop of one trip or none, whose product is split; one with other ops that do not compute element by element
// has no sharding rule: it is replicated, every device runs all of it, and a remark says so.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.while
// CHECK-SAME: rhino.carried = [#sdy.sharding<@mesh, []>, #sdy.sharding<@mesh, [{"x"}, {}]>]
// CHECK: stablehlo.dot_general {{.*}}[{"x"}, {}]
// CHECK: "stablehlo.case"
// CHECK-NEXT: "stablehlo.sort"
func.func @main(%p: tensor<i32>, %x: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %y = stablehlo.tanh %x : tensor<64x64xf32>
  %z = "stablehlo.case"(%p) ({
    %a = stablehlo.dot_general %y, %y, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    stablehlo.return %a : tensor<64x64xf32>
  }, {
    %b = stablehlo.cosine %y : tensor<64x64xf32>
    stablehlo.return %b : tensor<64x64xf32>
  }) : (tensor<i32>) -> tensor<64x64xf32>
  // expected-remark@+1 {{[rhino-choose-shardings] 'stablehlo.case' has no sharding rule: it is replicated, every device runs all of it}}
  %w = "stablehlo.case"(%p) ({
    %c = "stablehlo.sort"(%y) ({
    ^bb0(%one: tensor<f32>, %other: tensor<f32>):
      %less = stablehlo.compare LT, %one, %other : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    }) {dimension = 0 : i64} : (tensor<64x64xf32>) -> tensor<64x64xf32>
    stablehlo.return %c : tensor<64x64xf32>
  }, {
    stablehlo.return %y : tensor<64x64xf32>
  }) : (tensor<i32>) -> tensor<64x64xf32>
  return %z, %w : tensor<64x64xf32>, tensor<64x64xf32>
}
