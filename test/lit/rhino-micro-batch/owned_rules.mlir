// RUN: rhino-opt --pass-pipeline='rhino-op-rules,rhino-micro-batch{num=2}' %s | filecheck %s
// A custom call keeps the rule that the input gives it, for as many examples as it then has.

// CHECK-LABEL: func.func @main
// CHECK: stablehlo.custom_call @thing(%{{.*}}) {sdy.sharding_rule = #sdy.op_sharding_rule<([ij, k])->([ij, k]) {i=2, j=2, k=8}, custom>} : (tensor<4x8xf32>) -> tensor<4x8xf32>
func.func @main(%w: tensor<8x8xf32>, %x: tensor<8x8xf32>) -> (tensor<f32>, tensor<8x8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.custom_call @thing(%x) {sdy.sharding_rule = #sdy.op_sharding_rule<([ij, k])->([ij, k]) {i=4, j=2, k=8}>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %loss = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
  %g = stablehlo.dot_general %h, %y, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %new = stablehlo.subtract %w, %g : tensor<8x8xf32>
  return %loss, %new : tensor<f32>, tensor<8x8xf32>
}
