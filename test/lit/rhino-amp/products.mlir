// RUN: rhino-opt --rhino-amp %s | filecheck %s
// RUN: rhino-opt --rhino-amp --remarks-filter=amp --verify-diagnostics %s
// A weight is converted once for both passes. A product that others follow from gives bf16; the gradient of a weight is the sum itself, in f32, as
// are the update and the loss. What a product reads is rounded once, for all its readers; what one op alone reads in f32 is computed in f32.

// expected-remark@unknown {{5 of 5 products compute in bf16 and sum up in f32; values of 1.5 KiB are stored in half of that, 0 of them rounded for the backward pass alone; in f32 stay: 1 reduce}}

// CHECK: func.func @main(%[[W:.*]]: tensor<8x4xf32> {{.*}}, %[[V:.*]]: tensor<4x4xf32> {{.*}}, %[[X:.*]]: tensor<16x8xf32>, %[[Y:.*]]: tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>, tensor<f32>)
// CHECK: %[[X16:.*]] = stablehlo.convert %[[X]] : (tensor<16x8xf32>) -> tensor<16x8xbf16>
// CHECK-NEXT: %[[W16:.*]] = stablehlo.convert %[[W]] : (tensor<8x4xf32>) -> tensor<8x4xbf16>
// CHECK-NEXT: %[[A:.*]] = stablehlo.dot_general %[[X16]], %[[W16]], {{.*}} -> tensor<16x4xbf16>
// CHECK-NEXT: %[[H:.*]] = stablehlo.maximum %[[A]], %{{.*}} : tensor<16x4xbf16>
// CHECK-NEXT: %[[V16:.*]] = stablehlo.convert %[[V]] : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT: %[[OUT16:.*]] = stablehlo.dot_general %[[H]], %[[V16]], {{.*}} -> tensor<16x4xbf16>
// CHECK-NEXT: %[[OUT:.*]] = stablehlo.convert %[[OUT16]] : (tensor<16x4xbf16>) -> tensor<16x4xf32>
// CHECK-NEXT: %[[D:.*]] = stablehlo.subtract %[[OUT]], %[[Y]] : tensor<16x4xf32>
// CHECK-NEXT: %[[D2:.*]] = stablehlo.multiply %[[D]], %[[D]] : tensor<16x4xf32>
// CHECK-NEXT: %[[LOSS:.*]] = stablehlo.reduce(%[[D2]] init: {{.*}}) {{.*}} : (tensor<16x4xf32>, tensor<f32>) -> tensor<f32>
// CHECK-NEXT: %[[G:.*]] = stablehlo.add %[[D]], %[[D]] : tensor<16x4xf32>
// CHECK-NEXT: %[[G16:.*]] = stablehlo.convert %[[G]] : (tensor<16x4xf32>) -> tensor<16x4xbf16>
// CHECK-NEXT: %[[DV:.*]] = stablehlo.dot_general %[[H]], %[[G16]], {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[DH:.*]] = stablehlo.dot_general %[[G16]], %[[V16]], {{.*}} -> tensor<16x4xbf16>
// CHECK-NEXT: %[[IS_ON:.*]] = stablehlo.compare GT, %[[A]], %{{.*}} : (tensor<16x4xbf16>, tensor<16x4xbf16>)
// CHECK-NEXT: %[[DA:.*]] = stablehlo.select %[[IS_ON]], %[[DH]], %{{.*}} : tensor<16x4xi1>, tensor<16x4xbf16>
// CHECK-NEXT: %[[DW:.*]] = stablehlo.dot_general %[[X16]], %[[DA]], {{.*}} -> tensor<8x4xf32>
// CHECK-NEXT: %[[NEW_W:.*]] = stablehlo.subtract %[[W]], %[[DW]] : tensor<8x4xf32>
// CHECK-NEXT: %[[NEW_V:.*]] = stablehlo.subtract %[[V]], %[[DV]] : tensor<4x4xf32>
// CHECK-NEXT: return %[[NEW_W]], %[[NEW_V]], %[[LOSS]]
func.func @main(%w: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}, %v: tensor<4x4xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<16x8xf32>,
    %y: tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<16x4xf32>
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %h = stablehlo.maximum %a, %zeros : tensor<16x4xf32>
  %out = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
  %d = stablehlo.subtract %out, %y : tensor<16x4xf32>
  %s = stablehlo.multiply %d, %d : tensor<16x4xf32>
  %loss = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x4xf32>, tensor<f32>) -> tensor<f32>
  %g = stablehlo.add %d, %d : tensor<16x4xf32>
  %dv = stablehlo.dot_general %h, %g, contracting_dims = [0] x [0] : (tensor<16x4xf32>, tensor<16x4xf32>) -> tensor<4x4xf32>
  %dh = stablehlo.dot_general %g, %v, contracting_dims = [1] x [1] : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
  %is_on = stablehlo.compare GT, %a, %zeros : (tensor<16x4xf32>, tensor<16x4xf32>) -> tensor<16x4xi1>
  %da = stablehlo.select %is_on, %dh, %zeros : tensor<16x4xi1>, tensor<16x4xf32>
  %dw = stablehlo.dot_general %x, %da, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %new_w = stablehlo.subtract %w, %dw : tensor<8x4xf32>
  %new_v = stablehlo.subtract %v, %dv : tensor<4x4xf32>
  return %new_w, %new_v, %loss : tensor<8x4xf32>, tensor<4x4xf32>, tensor<f32>
}
