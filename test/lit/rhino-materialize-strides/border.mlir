// RUN: rhino-opt --rhino-materialize-strides --split-input-file %s | filecheck %s
// An op that cannot take a view reads and gives the dim whole, through reshapes; where more would be moved there than the cuts save,
// nothing is viewed.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %{{.*}}: tensor<64x6xf32>, %[[W:.*]]: tensor<6x2x6xf32>
// CHECK: %[[WHOLE:.*]] = stablehlo.reshape %[[W]] : (tensor<6x2x6xf32>) -> tensor<6x12xf32>
// CHECK-NEXT: %[[R:.*]] = stablehlo.reverse %[[WHOLE]], dims = [1] : tensor<6x12xf32>
// CHECK-NEXT: %[[V:.*]] = stablehlo.reshape %[[R]] : (tensor<6x12xf32>) -> tensor<6x2x6xf32>
// CHECK-NEXT: stablehlo.add %[[V]], %[[W]] : tensor<6x2x6xf32>
func.func @main(%x: tensor<64x6xf32>, %w: tensor<6x12xf32>) -> (tensor<64x6xf32>, tensor<6x12xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x6xf32>, tensor<6x12xf32>) -> tensor<64x12xf32>
  %a = stablehlo.slice %y [0:64, 0:6] : (tensor<64x12xf32>) -> tensor<64x6xf32>
  %b = stablehlo.slice %y [0:64, 6:12] : (tensor<64x12xf32>) -> tensor<64x6xf32>
  %ab = stablehlo.multiply %a, %b : tensor<64x6xf32>
  %r = stablehlo.reverse %w, dims = [1] : tensor<6x12xf32>
  %s = stablehlo.add %r, %w : tensor<6x12xf32>
  return %ab, %s : tensor<64x6xf32>, tensor<6x12xf32>
}

// -----

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %{{.*}}: tensor<2x6xf32>, %{{.*}}: tensor<6x12xf32>)
// CHECK-NOT: stablehlo.reshape
func.func @main(%x: tensor<2x6xf32>, %w: tensor<6x12xf32>) -> (tensor<2x6xf32>, tensor<6x12xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x6xf32>, tensor<6x12xf32>) -> tensor<2x12xf32>
  %a = stablehlo.slice %y [0:2, 0:6] : (tensor<2x12xf32>) -> tensor<2x6xf32>
  %b = stablehlo.slice %y [0:2, 6:12] : (tensor<2x12xf32>) -> tensor<2x6xf32>
  %ab = stablehlo.multiply %a, %b : tensor<2x6xf32>
  %r = stablehlo.reverse %w, dims = [1] : tensor<6x12xf32>
  %s = stablehlo.add %r, %w : tensor<6x12xf32>
  return %ab, %s : tensor<2x6xf32>, tensor<6x12xf32>
}

// -----

// A constant of complex elements is read through a reshape, where one of real elements is made anew.

// CHECK-LABEL: func.func @main(
// CHECK: %[[C:.*]] = stablehlo.constant dense<(1.000000e+00,2.000000e+00)> : tensor<64x12xcomplex<f32>>
// CHECK: %[[V:.*]] = stablehlo.reshape %[[C]] : (tensor<64x12xcomplex<f32>>) -> tensor<64x2x6xcomplex<f32>>
// CHECK-NEXT: stablehlo.add %{{.*}}, %[[V]] : tensor<64x2x6xcomplex<f32>>
func.func @main(%x: tensor<64x6xcomplex<f32>>, %w: tensor<6x12xcomplex<f32>>) -> tensor<64x6xcomplex<f32>> {
  %c = stablehlo.constant dense<(1.0, 2.0)> : tensor<64x12xcomplex<f32>>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x6xcomplex<f32>>, tensor<6x12xcomplex<f32>>) -> tensor<64x12xcomplex<f32>>
  %z = stablehlo.add %y, %c : tensor<64x12xcomplex<f32>>
  %a = stablehlo.slice %z [0:64, 0:6] : (tensor<64x12xcomplex<f32>>) -> tensor<64x6xcomplex<f32>>
  %b = stablehlo.slice %z [0:64, 6:12] : (tensor<64x12xcomplex<f32>>) -> tensor<64x6xcomplex<f32>>
  %ab = stablehlo.multiply %a, %b : tensor<64x6xcomplex<f32>>
  return %ab : tensor<64x6xcomplex<f32>>
}
