// RUN: rhino-opt --rhino-materialize-strides --split-input-file %s | filecheck %s
// A sharding that leaves the cut dim whole gets an unsplit dim more, as open as before; one that splits it keeps its dim as it is.

sdy.mesh @mesh = <["x"=2]>
// CHECK-LABEL: func.func @main(
// CHECK-SAME: tensor<6x2x4xf32> {rhino.view = array<i64: 6, 8>, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}, {?}]>}
// CHECK: sdy.sharding_constraint %{{.*}} <@mesh, [{"x"}, {}, {}]> : tensor<4x2x4xf32>
func.func @main(%x: tensor<4x6xf32>, %w: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}) -> tensor<4x4xf32> {
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  %y = sdy.sharding_constraint %d <@mesh, [{"x"}, {}]> : tensor<4x8xf32>
  %a = stablehlo.slice %y [0:4, 0:4] : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %b = stablehlo.slice %y [0:4, 4:8] : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %ab = stablehlo.multiply %a, %b : tensor<4x4xf32>
  return %ab : tensor<4x4xf32>
}

// -----

sdy.mesh @mesh = <["x"=2]>
// CHECK-LABEL: func.func @main(
// CHECK-SAME: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}
// CHECK: stablehlo.slice %{{.*}} [0:4, 0:4]
func.func @main(%x: tensor<4x6xf32>, %w: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<4x4xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  %a = stablehlo.slice %y [0:4, 0:4] : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %b = stablehlo.slice %y [0:4, 4:8] : (tensor<4x8xf32>) -> tensor<4x4xf32>
  %ab = stablehlo.multiply %a, %b : tensor<4x4xf32>
  return %ab : tensor<4x4xf32>
}
