// RUN: rhino-opt --rhino-choose-shardings --cluster=v100x8 --split-input-file --verify-diagnostics %s
// On two axes a sharding can be wrong in more ways: axes in another order than the mesh's, too many for a dim, or for one result.

sdy.mesh @mesh = <["x"=2, "y"=2]>
// expected-error@+3 {{[RHI-SHARD-001] the sharding of argument 0 "arg0" cannot be honoured: dim 0 is split over "y", "x"; the plan splits by outer axes first}}
// expected-note@+2 {{the sharding is #sdy.sharding<@mesh, [{"y", "x"}, {}]>}}
// expected-note@+1 {{to fix:}}
func.func @inner_axis_first(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>}) -> tensor<16x16xf32> {
  return %a : tensor<16x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=3]>
// expected-error@+3 {{[RHI-SHARD-001] the sharding of argument 0 "arg0" cannot be honoured: dim 0 has size 8, which "x" (2), "y" (3) does not divide}}
// expected-note@+2 {{the sharding is #sdy.sharding<@mesh, [{"x", "y"}, {}]>}}
// expected-note@+1 {{to fix: choose dims that whole axes divide}}
func.func @six_parts_of_eight(%a: tensor<8x9xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> tensor<8x9xf32> {
  return %a : tensor<8x9xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @sums_of_what_is_no_sum(%a: tensor<16x16xf32>) -> tensor<16x16xf32> {
  // expected-error@+3 {{[RHI-SHARD-001] the sharding of stablehlo.tanh tensor<16x16xf32> cannot be reached from how its op can run}}
  // expected-note@+2 {{it allows x:S0 y:P (R: whole on every device}}
  // expected-note@+1 {{to fix: leave the sharding open}}
  %b = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}], unreduced={"y"}>]>} : tensor<16x16xf32>
  return %b : tensor<16x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=2, "y"=2]>
// expected-error@unknown {{[RHI-SHARD-001] the sharding of argument 0}}
// expected-note@unknown {{it allows x:S0 y:S0, and x:S0 y:S1}}
// expected-note@unknown {{to fix:}}
func.func @result_against_the_argument_it_takes_over(
    %a: tensor<16x16xf32> {tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>})
    -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
  %b = stablehlo.tanh %a : tensor<16x16xf32>
  return %b : tensor<16x16xf32>
}
