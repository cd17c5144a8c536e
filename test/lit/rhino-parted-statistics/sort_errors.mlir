// RUN: rhino-opt %s --rhino-parted-statistics="batch-statistics=4-parts" --verify-diagnostics
// What is not known to run for parts, as sorting statistics, is refused at its place.

func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x16xf32> {tf.aliasing_output = 0 : i32}) -> tensor<16x16xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  // expected-error @below {{[RHI-BATCH-009] 'stablehlo.sort' works on statistics of parts of the batch}}
  // expected-note @below {{take them of each micro-batch}}
  %sorted = "stablehlo.sort"(%sum) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<16xf32>) -> tensor<16xf32>
  %all = stablehlo.broadcast_in_dim %sorted, dims = [1] : (tensor<16xf32>) -> tensor<8x16xf32>
  %centered = stablehlo.subtract %h, %all : tensor<8x16xf32>
  %gradient = stablehlo.dot_general %x, %centered, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
  %new = stablehlo.subtract %w, %gradient : tensor<16x16xf32>
  return %new : tensor<16x16xf32>
}
