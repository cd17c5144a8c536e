// RUN: rhino-opt --auto-shard --localize --cluster=v100x8 %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=v100x8 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=8 --form=localized
// A constraint is a place where a value is stored: what it takes to get there is sent there.

// CHECK-LABEL: func.func @main(
// CHECK: %[[SPLIT:.*]] = stablehlo.add %{{.*}} : tensor<2x4xf32>
// CHECK: %[[WHOLE:.*]] = "stablehlo.all_gather"(%[[SPLIT]])
// CHECK: stablehlo.reduce(%[[WHOLE]]
sdy.mesh @mesh = <["x"=8]>
func.func @main(%a: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %b = stablehlo.add %a, %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<16x4xf32>
  %c = sdy.sharding_constraint %b <@mesh, [{}, {}]> : tensor<16x4xf32>
  %d = stablehlo.reduce(%c init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x4xf32>, tensor<f32>) -> tensor<f32>
  return %d : tensor<f32>
}
