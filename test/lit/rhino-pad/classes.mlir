// RUN: rhino-opt --pass-pipeline='rhino-pad{pad="arg0:1" parts=4}' --remarks-filter=rhino-pad %s 2>%t.err | filecheck %s
// RUN: cat %t.err | filecheck %s --check-prefix=WHY
// RUN: rhino-opt --pass-pipeline='rhino-pad{pad="arg0:1" parts=4}' %s | rhino-run --compare=%s
// RUN: rhino-opt --pass-pipeline='rhino-pad{pad="arg0:1" parts=4}' %s | rhino-opt --pass-pipeline='rhino-pad{pad="*" parts=4}' | filecheck %s
// Five classes are stored as eight. What is carried says its own shape and is padded with zeros; a maximum and a sum over the classes are
// masked, each with what changes nothing; a sort reads the five alone. A second run changes nothing.

// WHY: classes.mlir:{{[0-9]+}}:17: remark: [rhino-pad] dim 1 of argument 0 "arg0" tensor<2x5xf32> is stored with 8 elements, 3 of them padding
// WHY-SAME: as are 1 of 2 arguments: 24 B more in all
// WHY: remark: [rhino-pad] 3 masks keep padding out of answers; 1 ops read or give dims cut: stablehlo.sort

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:.*]]: tensor<2x8xf32> {rhino.padded = array<i64: 2, 5>, tf.aliasing_output = 0 : i32}, %[[X:.*]]: tensor<3x2xf32>
// CHECK-SAME: -> (tensor<2x8xf32> {rhino.padded = array<i64: 2, 5>}, tensor<3xf32>, tensor<3x5xf32>)
// CHECK: %[[Y:.*]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [0] : {{.*}} -> tensor<3x8xf32>
// CHECK: %[[COUNT:.*]] = stablehlo.iota dim = 1 : tensor<3x8xi32>
// CHECK: %[[OWN:.*]] = stablehlo.compare LT, %[[COUNT]], %{{.*}} : (tensor<3x8xi32>, tensor<3x8xi32>) -> tensor<3x8xi1>
// CHECK-NEXT: %[[LOW:.*]] = stablehlo.select %[[OWN]], %[[Y]], %{{.*}} : tensor<3x8xi1>, tensor<3x8xf32>
// CHECK-NEXT: stablehlo.reduce(%[[LOW]] init: %{{.*}}) applies stablehlo.maximum
// CHECK: %[[E:.*]] = stablehlo.exponential %[[Y]] : tensor<3x8xf32>
// CHECK-NEXT: %[[NONE:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<f32>) -> tensor<3x8xf32>
// CHECK-NEXT: %[[KEPT:.*]] = stablehlo.select %[[OWN]], %[[E]], %[[NONE]] : tensor<3x8xi1>, tensor<3x8xf32>
// CHECK-NEXT: stablehlo.reduce(%[[KEPT]] init: %{{.*}}) applies stablehlo.add
// CHECK: %[[FIVE:.*]] = stablehlo.slice %[[Y]] [0:3, 0:5] : (tensor<3x8xf32>) -> tensor<3x5xf32>
// CHECK-NEXT: %[[SORTED:.*]] = "stablehlo.sort"(%[[FIVE]])
// CHECK: %[[C:.*]] = stablehlo.cosine %[[W]] : tensor<2x8xf32>
// CHECK: %[[NEW:.*]] = stablehlo.select %{{.*}}, %[[C]], %{{.*}} : tensor<2x8xi1>, tensor<2x8xf32>
// CHECK-NEXT: return %[[NEW]], %{{.*}}, %[[SORTED]] : tensor<2x8xf32>, tensor<3xf32>, tensor<3x5xf32>
func.func @main(%w: tensor<2x5xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<3x2xf32>) -> (tensor<2x5xf32>, tensor<3xf32>, tensor<3x5xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<3x2xf32>, tensor<2x5xf32>) -> tensor<3x5xf32>
  %most = stablehlo.reduce(%y init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32>
  %e = stablehlo.exponential %y : tensor<3x5xf32>
  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32>
  %r = stablehlo.add %most, %sum : tensor<3xf32>
  %s = "stablehlo.sort"(%y) <{dimension = 1 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<3x5xf32>) -> tensor<3x5xf32>
  %new = stablehlo.cosine %w : tensor<2x5xf32>
  return %new, %r, %s : tensor<2x5xf32>, tensor<3xf32>, tensor<3x5xf32>
}
