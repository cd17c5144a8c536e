// RUN: rhino-opt --micro-batches=2 %s -o /dev/null --remarks-filter=batch 2>&1 | filecheck %s
// RUN: rhino-opt --micro-batches=2 --batch='*.x:1' %s -o /dev/null --remarks-filter=batch 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: rhino-opt --micro-batches=2 --no-batch=weights %s -o /dev/null --remarks-filter=batch 2>&1 | filecheck %s --check-prefix=NO-BATCH
// The batch is the dim of an input that most of the work shares, and what it becomes in other arguments; it can be named instead, and
// arguments can be kept out of it.

// CHECK: remark: [rhino-micro-batch] 2 micro-batches; the batch is dim 0 of "data['x']", dim 0 of "weights"
// OTHER: remark: [rhino-micro-batch] 2 micro-batches; the batch is dim 1 of "data['x']"
// NO-BATCH: remark: [rhino-micro-batch] 2 micro-batches; the batch is dim 0 of "data['x']"{{$}}
func.func @main(%b: tensor<f32> {tf.aliasing_output = 0 : i32} loc("b"), %x: tensor<8x6xf32> loc("data['x']"), %w: tensor<8xf32> loc("weights")) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %ws = stablehlo.broadcast_in_dim %w, dims = [0] : (tensor<8xf32>) -> tensor<8x6xf32>
  %y = stablehlo.multiply %x, %ws : tensor<8x6xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x6xf32>, tensor<f32>) -> tensor<f32>
  %new = stablehlo.subtract %b, %s : tensor<f32>
  return %new : tensor<f32>
}
