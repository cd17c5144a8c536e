// RUN: rhino-opt %s --auto-shard --cluster=v100x8 --mesh=8 --op-rules=%S/Inputs/rules.toml | filecheck %s --check-prefix=RULE
// RUN: rhino-opt %s --auto-shard --localize --cluster=v100x8 --mesh=8 --op-rules=%S/Inputs/rules.toml | filecheck %s --check-prefix=LOCAL
// RUN: rhino-opt %s --auto-shard --cluster=v100x8 --mesh=8 | filecheck %s --check-prefix=WHOLE
// A custom call with a rule is split by it, here over the sum, whose parts are added up; each device calls it on its own blocks. Without
// one it runs whole.

// RULE: stablehlo.custom_call @product({{.*}} sdy.sharding_rule =
// LOCAL: stablehlo.custom_call @product(%{{.*}}) : (tensor<4096x512xf32>, tensor<512x256xf32>) -> tensor<4096x256xf32>
// LOCAL-NEXT: stablehlo.reduce_scatter
// WHOLE: stablehlo.custom_call @product(%{{.*}}) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>}
sdy.mesh @mesh = <["x"=8]>
func.func @main(%a: tensor<4096x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                %b: tensor<4096x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4096x256xf32> {
  %p = stablehlo.custom_call @product(%a, %b) : (tensor<4096x4096xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
  %y = stablehlo.tanh %p : tensor<4096x256xf32>
  return %y : tensor<4096x256xf32>
}
