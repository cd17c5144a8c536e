// RUN: rhino-opt --micro-batches=4 --batch=arg1:1 %s | filecheck %s
// A batch that is merged with a dim before it is kept apart from it, so that a micro-batch is a block of what comes out.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.while
// CHECK: stablehlo.dot_general {{.*}}, contracting_dims = [2] x [0] : (tensor<3x2x5xf32>, tensor<5x5xf32>) -> tensor<3x2x5xf32>
func.func @main(%w: tensor<5x5xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<3x8x5xf32>) -> tensor<5x5xf32> {
  %rows = stablehlo.reshape %x : (tensor<3x8x5xf32>) -> tensor<24x5xf32>
  %h = stablehlo.dot_general %rows, %w, contracting_dims = [1] x [0] : (tensor<24x5xf32>, tensor<5x5xf32>) -> tensor<24x5xf32>
  %back = stablehlo.reshape %h : (tensor<24x5xf32>) -> tensor<3x8x5xf32>
  %n = stablehlo.tanh %back : tensor<3x8x5xf32>
  %g = stablehlo.dot_general %n, %x, contracting_dims = [0, 1] x [0, 1] : (tensor<3x8x5xf32>, tensor<3x8x5xf32>) -> tensor<5x5xf32>
  return %g : tensor<5x5xf32>
}
