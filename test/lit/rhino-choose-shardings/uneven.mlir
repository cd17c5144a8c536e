// RUN: rhino-opt --rhino-choose-shardings --mesh=2x4 --remarks-filter='stays whole' --verify-diagnostics %s
// A large argument that an axis cannot split says so, and what it would have to be padded to; a small one, or one with another dim that
// divides, does not.

// expected-remark@+3 {{argument 0 "arg0" tensor<1023x1026xf32> stays whole along "y": 4 divides none of its dims}}
// expected-remark@+2 {{argument 1 "arg1" tensor<1023x1023xf32> stays whole along "x": 2 divides none of its dims}}
// expected-remark@+1 {{"y": 4 divides none of its dims; padded from 1023 to 1024, dim 0 could be split}}
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
