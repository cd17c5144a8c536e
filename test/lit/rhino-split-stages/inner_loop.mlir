// RUN: rhino-opt --rhino-split-stages %s | filecheck %s
// What a loop inside a stage gives crosses as the loop carries it, not whole.

// CHECK: func.func private @forward_0(
// CHECK-SAME: -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
// CHECK: func.func private @backward_1(
// CHECK-SAME: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}

module attributes {rhino.num_stages = 2 : i64} {
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>} loc("x"))
    -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %start = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} dense<0.0> : tensor<4xf32>
  %end:2 = stablehlo.while(%i = %zero, %sum = %start) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 1 : i64,
                rhino.carried = [#sdy.sharding<@mesh, []>, #sdy.sharding<@mesh, [{"x"}]>]} cond {
    %more = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %scan:2 = stablehlo.while(%j = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
      attributes {rhino.virtual_stage = 0 : i64,
                  rhino.carried = [#sdy.sharding<@mesh, []>, #sdy.sharding<@mesh, [{"x"}]>]} cond {
      %on = stablehlo.compare LT, %j, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %on : tensor<i1>
    } do {
      %new = stablehlo.tanh %y {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<4xf32>
      %after = stablehlo.add %j, %one : tensor<i32>
      stablehlo.return %after, %new : tensor<i32>, tensor<4xf32>
    }
    %more_sum = stablehlo.add %sum, %scan#1
        {rhino.virtual_stage = 1 : i64, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %more_sum : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}
}
