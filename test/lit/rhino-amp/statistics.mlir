// RUN: rhino-opt --rhino-amp %s | filecheck %s
// A normalization computes in f32 what it reads in bf16: its mean is a sum. The scale that it multiplies by is read in f32 by the backward pass too,
// and a bias that is added to a product in bf16 by both.

// CHECK: func.func @main(%[[W:.*]]: tensor<8x8xf32> {{.*}}, %[[SCALE:.*]]: tensor<8xf32> {{.*}}, %[[BIAS:.*]]: tensor<8xf32>
// CHECK: %[[A16:.*]] = stablehlo.dot_general {{.*}} -> tensor<16x8xbf16>
// CHECK-NEXT: %[[BIAS16:.*]] = stablehlo.convert %[[BIAS]] : (tensor<8xf32>) -> tensor<8xbf16>
// CHECK-NEXT: %[[BIASES:.*]] = stablehlo.broadcast_in_dim %[[BIAS16]], dims = [1] : (tensor<8xbf16>) -> tensor<16x8xbf16>
// CHECK-NEXT: %[[H16:.*]] = stablehlo.add %[[A16]], %[[BIASES]] : tensor<16x8xbf16>
// CHECK-NEXT: %[[H:.*]] = stablehlo.convert %[[H16]] : (tensor<16x8xbf16>) -> tensor<16x8xf32>
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.reduce(%[[H]] init: {{.*}} -> tensor<16xf32>
// CHECK-NEXT: %[[SUMS:.*]] = stablehlo.broadcast_in_dim %[[SUM]], dims = [0] : (tensor<16xf32>) -> tensor<16x8xf32>
// CHECK-NEXT: %[[N:.*]] = stablehlo.subtract %[[H]], %[[SUMS]] : tensor<16x8xf32>
// CHECK-NEXT: %[[SCALES:.*]] = stablehlo.broadcast_in_dim %[[SCALE]], dims = [1] : (tensor<8xf32>) -> tensor<16x8xf32>
// CHECK-NEXT: %[[Y:.*]] = stablehlo.multiply %[[N]], %[[SCALES]] : tensor<16x8xf32>
// CHECK-NEXT: %[[Y16:.*]] = stablehlo.convert %[[Y]] : (tensor<16x8xf32>) -> tensor<16x8xbf16>
// CHECK: stablehlo.dot_general %[[Y16]], {{.*}} -> tensor<16x8xbf16>
// CHECK: %[[DY16:.*]] = stablehlo.dot_general {{.*}} -> tensor<16x8xbf16>
// CHECK-NEXT: %[[DY:.*]] = stablehlo.convert %[[DY16]] : (tensor<16x8xbf16>) -> tensor<16x8xf32>
// CHECK-NEXT: stablehlo.multiply %[[DY]], %[[SCALES]] : tensor<16x8xf32>
func.func @main(%w: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}, %scale: tensor<8xf32> {tf.aliasing_output = 1 : i32},
    %bias: tensor<8xf32> {tf.aliasing_output = 2 : i32}, %x: tensor<16x8xf32>) -> (tensor<8x8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %biases = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<8xf32>) -> tensor<16x8xf32>
  %h = stablehlo.add %a, %biases : tensor<16x8xf32>
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<16xf32>
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0] : (tensor<16xf32>) -> tensor<16x8xf32>
  %n = stablehlo.subtract %h, %sums : tensor<16x8xf32>
  %scales = stablehlo.broadcast_in_dim %scale, dims = [1] : (tensor<8xf32>) -> tensor<16x8xf32>
  %y = stablehlo.multiply %n, %scales : tensor<16x8xf32>
  %out = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %loss = stablehlo.reduce(%out init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<f32>
  %dy = stablehlo.dot_general %out, %w, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %dn = stablehlo.multiply %dy, %scales : tensor<16x8xf32>
  %dw = stablehlo.dot_general %x, %dn, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %dscales = stablehlo.multiply %dy, %n : tensor<16x8xf32>
  %dscale = stablehlo.reduce(%dscales init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16x8xf32>, tensor<f32>) -> tensor<8xf32>
  %new_w = stablehlo.subtract %w, %dw : tensor<8x8xf32>
  %new_scale = stablehlo.subtract %scale, %dscale : tensor<8xf32>
  return %new_w, %new_scale, %bias, %loss : tensor<8x8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<f32>
}
