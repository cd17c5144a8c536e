// RUN: rhino-opt --rhino-materialize-strides %s | filecheck %s
// RUN: rhino-opt --rhino-materialize-strides %s | rhino-run --compare=%s
// RUN: rhino-opt --rhino-materialize-strides %s | rhino-opt --rhino-materialize-strides | filecheck %s
// A projection whose result is cut in three equal blocks gets a dim for the blocks, from its weight to the slices; a second run
// changes nothing.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.*]]: tensor<4x6xf32>, %[[W:.*]]: tensor<6x3x4xf32> {rhino.view = array<i64: 6, 12>})
// CHECK-NEXT: %[[Y:.*]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [0] : {{.*}} -> tensor<4x3x4xf32>
// CHECK-NEXT: %[[A1:.*]] = stablehlo.slice %[[Y]] [0:4, 0:1, 0:4] : {{.*}} -> tensor<4x1x4xf32>
// CHECK-NEXT: %[[A:.*]] = stablehlo.reshape %[[A1]] : {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[B1:.*]] = stablehlo.slice %[[Y]] [0:4, 1:2, 0:4] : {{.*}} -> tensor<4x1x4xf32>
// CHECK-NEXT: %[[B:.*]] = stablehlo.reshape %[[B1]] : {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[C1:.*]] = stablehlo.slice %[[Y]] [0:4, 2:3, 0:4] : {{.*}} -> tensor<4x1x4xf32>
// CHECK-NEXT: %[[C:.*]] = stablehlo.reshape %[[C1]] : {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[AB:.*]] = stablehlo.multiply %[[A]], %[[B]] : tensor<4x4xf32>
// CHECK-NEXT: stablehlo.add %[[AB]], %[[C]] : tensor<4x4xf32>
func.func @main(%x: tensor<4x6xf32>, %w: tensor<6x12xf32>) -> tensor<4x4xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x12xf32>) -> tensor<4x12xf32>
  %a = stablehlo.slice %y [0:4, 0:4] : (tensor<4x12xf32>) -> tensor<4x4xf32>
  %b = stablehlo.slice %y [0:4, 4:8] : (tensor<4x12xf32>) -> tensor<4x4xf32>
  %c = stablehlo.slice %y [0:4, 8:12] : (tensor<4x12xf32>) -> tensor<4x4xf32>
  %ab = stablehlo.multiply %a, %b : tensor<4x4xf32>
  %abc = stablehlo.add %ab, %c : tensor<4x4xf32>
  return %abc : tensor<4x4xf32>
}
