// RUN: rhino-opt --rhino-choose-shardings --cluster=cpu4 --verify-diagnostics %s
// A sharding that no way of running the op can reach is refused: a tanh of sums is no sum.

// expected-error@+5 {{[RHI-SHARD-001] the sharding of stablehlo.tanh tensor<8x8xf32> cannot be reached from how its op can run}}
// expected-note@+4 {{it allows P (R: whole on every device}}
// expected-note@+3 {{to fix: leave the sharding open, or choose a dim that the op can split}}
sdy.mesh @mesh = <["x"=4]>
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}], unreduced={"x"}>]>} : tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}
