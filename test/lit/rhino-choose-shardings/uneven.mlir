// RUN: rhino-opt --rhino-choose-shardings --mesh=2x4 --remarks-filter='cannot be split' --verify-diagnostics %s
// A large argument whose largest dim an axis does not divide says so, and what padding would make of it; a small one, or one whose largest
// dim divides, does not.

// expected-remark@+3 {{dim 1 of argument 0 "arg0" tensor<1023x1026xf32> cannot be split along "y": 4 does not divide it; --pad='arg0:1' would}}
// expected-remark@+2 {{dim 0 of argument 1 "arg1" tensor<1023x1023xf32> cannot be split along "x": 2 does not divide it}}
// expected-remark@+1 {{"y": 4 does not divide it; --pad='arg1:0' would store it with 1024 elements}}
func.func @main(%a: tensor<1023x1026xf32>, %b: tensor<1023x1023xf32>, %c: tensor<1023x1024xf32>, %d: tensor<3x3xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<1023x1026xf32>, tensor<f32>) -> tensor<f32>
  %1 = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<1023x1023xf32>, tensor<f32>) -> tensor<f32>
  %2 = stablehlo.reduce(%c init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<1023x1024xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.reduce(%d init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<3x3xf32>, tensor<f32>) -> tensor<f32>
  %4 = stablehlo.add %0, %1 : tensor<f32>
  %5 = stablehlo.add %2, %3 : tensor<f32>
  %6 = stablehlo.add %4, %5 : tensor<f32>
  return %6 : tensor<f32>
}
