// RUN: rhino-opt --micro-batches=4 --batch=arg1:1 --verify-diagnostics %s
// A batch that is merged with a dim before it, by what cannot take them apart, is refused where it is merged.

func.func @main(%w: tensor<5x5xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<3x8x5xf32>) -> tensor<5x5xf32> {
  // expected-error@+6 {{[RHI-BATCH-004] micro-batches would have to synchronize: 'stablehlo.reshape' reads a part of the batch and needs all of it}}
  // expected-note@+5 {{it is operand 0, argument 1}}
  // expected-note@+4 {{work of each micro-batch waits for it: stablehlo.dot_general tensor<5x5xf32> at}}
  // expected-note@+3 {{the batch is taken to be dim 1 of argument 1 "arg1" tensor<3x8x5xf32>}}
  // expected-note@+2 {{it merges dim 1, the batch, with dims before it, and not all that follows can take them apart}}
  // expected-note@+1 {{to fix: transpose before it, so that the batch comes first; or make examples independent}}
  %rows = stablehlo.reshape %x : (tensor<3x8x5xf32>) -> tensor<24x5xf32>
  %sorted = "stablehlo.sort"(%rows) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<24x5xf32>) -> tensor<24x5xf32>
  %g = stablehlo.dot_general %sorted, %rows, contracting_dims = [0] x [0] : (tensor<24x5xf32>, tensor<24x5xf32>) -> tensor<5x5xf32>
  return %g : tensor<5x5xf32>
}
