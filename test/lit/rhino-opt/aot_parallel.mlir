// RUN: rhino-opt %s --auto-parallel --aot --cluster=cpu4 --stages=2 --micro-batches=2 --mesh=2 --plan=%t.two 2>&1 | filecheck %s --check-prefix=TWO
// RUN: rhino-opt %s --auto-parallel --aot --cluster=cpu4 --jobs=1 --plan=%t.best --compiles=4 2>&1 | filecheck %s
// The target's compiler says what plans in stages and in one program take, and the fastest of them is written.

// TWO: compiled by XLA:CPU of jaxlib {{.*}}:
// TWO-NEXT: plan form step times the best memory predicted
// TWO-NEXT: * searched localized {{.*}} 1.00 {{.*}}
// TWO-NEXT: 2 stages on 2 ranks of mesh x=2, 2 micro-batches, 1f1b: step
// CHECK: s and {{[0-9.]+ [KM]iB}} per device once compiled, the best of 4 that were
// CHECK: compiled by XLA:CPU of jaxlib {{.*}}:
// CHECK-NEXT: plan form step times the best memory predicted
// CHECK: * {{.*}} 1.00 {{.*}}
func.func public @main(%w: tensor<256x256xf32> {tf.aliasing_output = 0 : i32}, %v: tensor<256x256xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<64x256xf32>)
    -> (tensor<256x256xf32>, tensor<256x256xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %t = stablehlo.tanh %h : tensor<64x256xf32>
  %y = stablehlo.dot_general %t, %v, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %loss = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<64x256xf32>, tensor<f32>) -> tensor<f32>
  %dv = stablehlo.dot_general %t, %y, contracting_dims = [0] x [0] : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<256x256xf32>
  %dt = stablehlo.dot_general %y, %v, contracting_dims = [1] x [1] : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %dh = stablehlo.multiply %dt, %t : tensor<64x256xf32>
  %dw = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<256x256xf32>
  %w1 = stablehlo.subtract %w, %dw : tensor<256x256xf32>
  %v1 = stablehlo.subtract %v, %dv : tensor<256x256xf32>
  return %w1, %v1, %loss : tensor<256x256xf32>, tensor<256x256xf32>, tensor<f32>
}
