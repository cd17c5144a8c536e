// RUN: rhino-opt --rhino-pipeline-stages="stages=2 tolerance=0.4" %s | filecheck %s
// A step without a loop over micro-batches is one. What updates its weights has the stage (not virtual) of its gradient; the norm by which
// both gradients are divided is a scalar and ties nothing together.

// CHECK-LABEL: func.func @main(
// CHECK: %[[H:.*]] = stablehlo.dot_general %arg0, %arg2, {{.*}}rhino.virtual_stage = 0 : i64
// CHECK: %[[O:.*]] = stablehlo.dot_general %[[H]], %arg3, {{.*}}rhino.virtual_stage = 1 : i64
// CHECK: %[[G:.*]] = stablehlo.subtract %[[O]], %arg1 {rhino.virtual_stage = 1 : i64}
// CHECK: %[[GV:.*]] = stablehlo.dot_general %[[H]], %[[G]], {{.*}}rhino.virtual_stage = 1 : i64
// CHECK: %[[GH:.*]] = stablehlo.dot_general %[[G]], %arg3, {{.*}}rhino.virtual_stage = 1 : i64
// CHECK: %[[GU:.*]] = stablehlo.dot_general %arg0, %[[GH]], {{.*}}rhino.virtual_stage = 2 : i64
// CHECK: %[[SU:.*]] = stablehlo.multiply %[[GU]], %[[GU]] {rhino.stage = 0 : i64}
// CHECK: %[[SV:.*]] = stablehlo.multiply %[[GV]], %[[GV]] {rhino.stage = 1 : i64}
// CHECK: %[[DU:.*]] = stablehlo.divide %[[GU]], %{{.*}} {rhino.stage = 0 : i64}
// CHECK: %[[DV:.*]] = stablehlo.divide %[[GV]], %{{.*}} {rhino.stage = 1 : i64}
// CHECK: stablehlo.subtract %arg2, %[[DU]] {rhino.stage = 0 : i64}
// CHECK: stablehlo.subtract %arg3, %[[DV]] {rhino.stage = 1 : i64}
func.func @main(%x: tensor<32x32xf32>, %y: tensor<32x32xf32>, %u: tensor<32x32xf32>, %v: tensor<32x32xf32>) -> (tensor<32x32xf32>, tensor<32x32xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %u, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %o = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %g = stablehlo.subtract %o, %y : tensor<32x32xf32>
  %gv = stablehlo.dot_general %h, %g, contracting_dims = [0] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %gh = stablehlo.dot_general %g, %v, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %gu = stablehlo.dot_general %x, %gh, contracting_dims = [0] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %su = stablehlo.multiply %gu, %gu : tensor<32x32xf32>
  %sv = stablehlo.multiply %gv, %gv : tensor<32x32xf32>
  %nu = stablehlo.reduce(%su init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<32x32xf32>, tensor<f32>) -> tensor<f32>
  %nv = stablehlo.reduce(%sv init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<32x32xf32>, tensor<f32>) -> tensor<f32>
  %both = stablehlo.add %nu, %nv : tensor<f32>
  %norm = stablehlo.sqrt %both : tensor<f32>
  %spread = stablehlo.broadcast_in_dim %norm, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
  %du = stablehlo.divide %gu, %spread : tensor<32x32xf32>
  %dv = stablehlo.divide %gv, %spread : tensor<32x32xf32>
  %new_u = stablehlo.subtract %u, %du : tensor<32x32xf32>
  %new_v = stablehlo.subtract %v, %dv : tensor<32x32xf32>
  return %new_u, %new_v : tensor<32x32xf32>, tensor<32x32xf32>
}
