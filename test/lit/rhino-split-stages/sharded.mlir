// RUN: rhino-opt --rhino-split-stages %s | filecheck %s
// In a sharded program every value crosses as it is stored. What is accumulated may be a partial sum, from its zeros to its use.

// CHECK: sdy.mesh @mesh = <["x"=2]>
// CHECK: func.func private @setup_0() -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"x"}>})
// CHECK-NEXT: stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}], unreduced={"x"}>]>}
// CHECK: func.func private @backward_0(
// CHECK-SAME: tensor<2x8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}, %{{.*}}: tensor<i32> {sdy.sharding = #sdy.sharding<@mesh, []>}
// CHECK-SAME: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"x"}>, tf.aliasing_output = 0 : i32})
// CHECK-SAME: -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"x"}>})
// CHECK: func.func private @apply_0(%{{.*}}: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"x"}>})
// CHECK-SAME: -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})

sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<2x8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>} loc("x"))
    -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %start = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}], unreduced={"x"}>]>} dense<0.0> : tensor<4xf32>
  %end:2 = stablehlo.while(%i = %zero, %sum = %start) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 2 : i64,
                rhino.carried = [#sdy.sharding<@mesh, []>, #sdy.sharding<@mesh, [{}], unreduced={"x"}>]} cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %slice = stablehlo.dynamic_slice %x, %i, %zero, %zero, sizes = [1, 8, 4]
        {rhino.virtual_stage = 0 : i64, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>}
        : (tensor<2x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x4xf32>
    %part = stablehlo.reduce(%slice init: %none) applies stablehlo.add across dimensions = [0, 1]
        {rhino.virtual_stage = 0 : i64, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}], unreduced={"x"}>]>}
        : (tensor<1x8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %more_sum = stablehlo.add %sum, %part
        {rhino.virtual_stage = 0 : i64, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}], unreduced={"x"}>]>} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %more_sum : tensor<i32>, tensor<4xf32>
  }
  %y = stablehlo.tanh %end#1 {rhino.stage = 0 : i64, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<4xf32>
  return %y : tensor<4xf32>
}
