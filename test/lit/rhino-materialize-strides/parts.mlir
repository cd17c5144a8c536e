// RUN: rhino-opt --pass-pipeline="rhino-materialize-strides{parts=2}" --remarks-filter=blocks %s 2>%t.err | filecheck %s
// RUN: cat %t.err | filecheck %s --check-prefix=WHY
// RUN: rhino-opt --pass-pipeline="rhino-materialize-strides{parts=8}" %s | filecheck %s --check-prefix=EIGHT
// Blocks that the devices do not divide are not viewed; a remark says what a view is for.

// WHY: parts.mlir:{{[0-9]+}}:8: remark: [rhino-materialize-strides] dim 1 of stablehlo.dot_general tensor<4x8xf32> is seen as 2 blocks of 4, as are 1 of 2 arguments: 128 B of cuts per step

// CHECK: %{{.*}}: tensor<6x2x4xf32> {rhino.view = array<i64: 6, 8>}

// EIGHT: %{{.*}}: tensor<6x8xf32>)
func.func @main(%x: tensor<4x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x4xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  %a = stablehlo.slice %y [0:4, 0:4] : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %b = stablehlo.slice %y [0:4, 4:8] : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %ab = stablehlo.multiply %a, %b : tensor<4x4xf32>
  return %ab : tensor<4x4xf32>
}
