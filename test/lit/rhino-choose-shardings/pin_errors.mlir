// RUN: rhino-opt --rhino-choose-shardings --cluster=v100x8 --split-input-file --verify-diagnostics %s
// A sharding that the plan cannot keep is refused, never rounded to one that it can.

sdy.mesh @mesh = <["x"=8]>
// expected-error@+3 {{[RHI-SHARD-001] the sharding of argument 0 "arg0" cannot be honoured: dim 0 is split over "x":(1)2}}
// expected-note@+2 {{the sharding is}}
// expected-note@+1 {{to fix:}}
func.func @part_of_an_axis(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}, {}]>}) -> tensor<16x16xf32> {
  return %a : tensor<16x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=8]>
sdy.mesh @other = <["x"=2]>
// expected-error@+3 {{[RHI-SHARD-001] the sharding of argument 0 "arg0" cannot be honoured: it is of mesh @other}}
// expected-note@+2 {{the sharding is}}
// expected-note@+1 {{to fix:}}
func.func @another_mesh(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@other, [{"x"}, {}]>}) -> tensor<16x16xf32> {
  return %a : tensor<16x16xf32>
}

// -----

sdy.mesh @mesh = <["x"=8]>
// expected-error@unknown {{[RHI-SHARD-001] the sharding of argument 0}}
// expected-note@unknown {{it allows S1, and S0}}
// expected-note@unknown {{to fix:}}
func.func @result_against_the_argument_it_takes_over(
    %a: tensor<16x16xf32> {tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %b = stablehlo.tanh %a : tensor<16x16xf32>
  return %b : tensor<16x16xf32>
}
