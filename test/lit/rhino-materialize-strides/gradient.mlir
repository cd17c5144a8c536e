// RUN: rhino-opt --rhino-materialize-strides %s | filecheck %s
// RUN: rhino-opt --rhino-materialize-strides %s | rhino-run --compare=%s
// Gradients of the blocks, put together by a concatenation or by paddings that are added, make the gradient of the weight in its view;
// the updated weight, which takes over the weight's buffer, is returned in it.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:.*]]: tensor<6x2x4xf32> {rhino.view = array<i64: 6, 8>, tf.aliasing_output = 0 : i32}
// CHECK-SAME: -> (tensor<6x2x4xf32> {rhino.view = array<i64: 6, 8>}, tensor<4x6xf32>)
// CHECK: %[[A:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x4xf32>) -> tensor<4x1x4xf32>
// CHECK: %[[B:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x4xf32>) -> tensor<4x1x4xf32>
// CHECK: %[[AB:.*]] = stablehlo.concatenate %[[A]], %[[B]], dim = 1 : {{.*}} -> tensor<4x2x4xf32>
// CHECK: %[[P:.*]] = stablehlo.pad %[[A]], %{{.*}}, low = [0, 0, 0], high = [0, 1, 0], interior = [0, 0, 0] : {{.*}} -> tensor<4x2x4xf32>
// CHECK: %[[Q:.*]] = stablehlo.pad %[[B]], %{{.*}}, low = [0, 1, 0], high = [0, 0, 0], interior = [0, 0, 0] : {{.*}} -> tensor<4x2x4xf32>
// CHECK: %[[PQ:.*]] = stablehlo.add %[[P]], %[[Q]]
// CHECK: %[[D:.*]] = stablehlo.add %[[AB]], %[[PQ]] : tensor<4x2x4xf32>
// CHECK: %[[T:.*]] = stablehlo.dot_general %[[D]], %{{.*}}, contracting_dims = [0] x [0] : {{.*}} -> tensor<2x4x6xf32>
// CHECK: %[[G:.*]] = stablehlo.transpose %[[T]], dims = [2, 0, 1] : (tensor<2x4x6xf32>) -> tensor<6x2x4xf32>
// CHECK: %[[DX:.*]] = stablehlo.dot_general %[[D]], %[[W]], contracting_dims = [1, 2] x [1, 2]
// CHECK: %[[NEW:.*]] = stablehlo.subtract %[[W]], %[[G]] : tensor<6x2x4xf32>
// CHECK: return %[[NEW]], %[[DX]]
func.func @main(%w: tensor<6x8xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x6xf32>, %a: tensor<4x4xf32>, %b: tensor<4x4xf32>)
    -> (tensor<6x8xf32>, tensor<4x6xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %ab = stablehlo.concatenate %a, %b, dim = 1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
  %p = stablehlo.pad %a, %zero, low = [0, 0], high = [0, 4], interior = [0, 0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x8xf32>
  %q = stablehlo.pad %b, %zero, low = [0, 4], high = [0, 0], interior = [0, 0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x8xf32>
  %pq = stablehlo.add %p, %q : tensor<4x8xf32>
  %d = stablehlo.add %ab, %pq : tensor<4x8xf32>
  %t = stablehlo.dot_general %d, %x, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %g = stablehlo.transpose %t, dims = [1, 0] : (tensor<8x6xf32>) -> tensor<6x8xf32>
  %dx = stablehlo.dot_general %d, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  %new = stablehlo.subtract %w, %g : tensor<6x8xf32>
  return %new, %dx : tensor<6x8xf32>, tensor<4x6xf32>
}
