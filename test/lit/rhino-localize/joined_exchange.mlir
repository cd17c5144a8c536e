// RUN: rhino-opt --rhino-localize %s | filecheck %s
// RUN: rhino-run %s --compare=%s --devices=2 --form=localized
// What is joined out of parts is joined before it is exchanged: XLA would exchange the parts, and refuses them in different layouts.

// CHECK-LABEL: func.func @main(
// CHECK: %[[JOINED:.*]] = stablehlo.concatenate
// CHECK-NEXT: %[[WHOLE:.*]] = stablehlo.optimization_barrier %[[JOINED]]
// CHECK-NEXT: "stablehlo.all_to_all"(%[[WHOLE]])
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                %b: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<32x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %t = stablehlo.transpose %b, dims = [1, 0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : (tensor<32x16xf32>) -> tensor<16x32xf32>
  %j = stablehlo.concatenate %a, %t, dim = 0
      {rhino.strategy = "j", sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<32x32xf32>
  return %j : tensor<32x32xf32>
}
