// RUN: rhino-opt --split-input-file --verify-diagnostics %s
// A donation names a result by its number; a result takes over one buffer, of its own type.

// expected-error@below {{[RHI-READ-002] argument 0 is donated to "zero", expected the number of a result}}
// expected-note@below {{to fix: remove its tf.aliasing_output}}
func.func @no_number(%x: tensor<4xf32> {tf.aliasing_output = "zero"}) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// expected-error@below {{[RHI-READ-002] argument 0 is donated to result 1, of 1}}
// expected-note@below {{to fix: remove its tf.aliasing_output}}
func.func @no_result(%x: tensor<4xf32> {tf.aliasing_output = 1 : i32}) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

func.func @twice(
    %x: tensor<4xf32> {tf.aliasing_output = 0 : i32},
    // expected-error@below {{[RHI-READ-009] argument 1 is donated to result 0, as argument 0 does}}
    // expected-note@below {{to fix: remove its tf.aliasing_output}}
    %y: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4xf32> {
  %z = stablehlo.add %x, %y : tensor<4xf32>
  return %z : tensor<4xf32>
}

// -----

// expected-error@below {{[RHI-READ-009] argument 0 is donated to result 0, a tensor<2x2xf32>; expected its own type, tensor<4xf32>}}
// expected-note@below {{to fix: remove its tf.aliasing_output}}
func.func @another_type(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<2x2xf32> {
  %y = stablehlo.reshape %x : (tensor<4xf32>) -> tensor<2x2xf32>
  return %y : tensor<2x2xf32>
}
