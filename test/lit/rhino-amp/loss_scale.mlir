// RUN: rhino-opt --rhino-amp=amp=f16 --remarks-filter=amp --verify-diagnostics %s | filecheck %s
// In f16 a step takes a loss scale and gives the next one. What the backward pass begins with is scaled before it is rounded, the gradients are
// unscaled in f32, and where one of them is not finite the step gives its arguments back. An epsilon that f16 does not hold keeps in f32 what it meets.

// expected-remark@unknown {{3 of 5 products in f16 compute gradients that are scaled}}
// expected-remark@unknown {{5 of 5 products compute in f16}}

// CHECK: func.func @main(%[[W:.*]]: tensor<8x4xf32> {{{.*}}}, %[[V:.*]]: tensor<4x4xf32> {{{.*}}}, %[[X:.*]]: tensor<16x8xf32>, %[[Y:.*]]: tensor<16x4xf32>,
// CHECK-SAME: %[[S:.*]]: tensor<f32> {rhino.loss_scale = "scale", tf.aliasing_output = 3 : i32}, %[[COUNT:.*]]: tensor<i32> {rhino.loss_scale = "good_steps", tf.aliasing_output = 4 : i32})
// CHECK: %[[INVERSE:.*]] = stablehlo.divide %{{.*}}, %[[S]] : tensor<f32>
// CHECK: %[[OUT:.*]] = stablehlo.dot_general {{.*}} -> tensor<16x4xf16>
// CHECK: %[[SMALL:.*]] = stablehlo.convert %{{.*}} : (tensor<16x4xf16>) -> tensor<16x4xf32>
// CHECK: stablehlo.add %[[SMALL]], %{{.*}} : tensor<16x4xf32>
// CHECK: %[[G:.*]] = stablehlo.add %[[D:.*]], %[[D]] : tensor<16x4xf32>
// CHECK-NEXT: %[[SCALES:.*]] = stablehlo.broadcast_in_dim %[[S]], dims = [] : (tensor<f32>) -> tensor<16x4xf32>
// CHECK-NEXT: %[[SG:.*]] = stablehlo.multiply %[[G]], %[[SCALES]] : tensor<16x4xf32>
// CHECK-NEXT: %[[G16:.*]] = stablehlo.convert %[[SG]] : (tensor<16x4xf32>) -> tensor<16x4xf16>
// CHECK-NEXT: %[[DV:.*]] = stablehlo.dot_general %{{.*}}, %[[G16]], {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[DH:.*]] = stablehlo.dot_general %[[G16]], %{{.*}} -> tensor<16x4xf16>
// CHECK: %[[DW:.*]] = stablehlo.dot_general {{.*}} -> tensor<8x4xf32>
// CHECK-NEXT: %[[INVERSES:.*]] = stablehlo.broadcast_in_dim %[[INVERSE]], dims = [] : (tensor<f32>) -> tensor<8x4xf32>
// CHECK-NEXT: %[[STEP:.*]] = stablehlo.multiply %[[DW]], %[[INVERSES]] : tensor<8x4xf32>
// CHECK-NEXT: %[[NEW_W:.*]] = stablehlo.subtract %[[W]], %[[STEP]] : tensor<8x4xf32>
// CHECK: %[[IS_FINITE:.*]] = stablehlo.and %{{.*}}, %{{.*}} : tensor<i1>
// CHECK-NEXT: %[[RESULT:.*]] = stablehlo.select %[[IS_FINITE]], %[[NEW_W]], %[[W]] : tensor<i1>, tensor<8x4xf32>
// CHECK: %[[NEXT:.*]] = stablehlo.select %[[IS_FINITE]], %{{.*}}, %{{.*}} : tensor<i1>, tensor<f32>
// CHECK-NEXT: %[[COUNTED:.*]] = stablehlo.select %[[IS_FINITE]], %{{.*}}, %{{.*}} : tensor<i1>, tensor<i32>
// CHECK-NEXT: return %[[RESULT]], %{{.*}}, %{{.*}}, %[[NEXT]], %[[COUNTED]]
func.func @main(%w: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}, %v: tensor<4x4xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<16x8xf32>,
    %y: tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<16x4xf32>
  %epsilon = stablehlo.constant dense<1.0e-06> : tensor<16x4xf32>
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %h = stablehlo.maximum %a, %zeros : tensor<16x4xf32>
  %product = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
  %out = stablehlo.add %product, %epsilon : tensor<16x4xf32>
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
