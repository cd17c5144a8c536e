// RUN: rhino-opt --rhino-cones %s | filecheck %s
// RUN: rhino-opt --rhino-cones --verify-diagnostics --remarks-filter=cones %s
// An op that reads several tensors is a root; what leads to it alone, one tensor at a time, is in its cone. An op that two cones read
// (%h), or that is returned (%z), is a root of its own. A constant's op has no cone.

// CHECK-LABEL: func.func @main(
// CHECK: %[[H:.*]] = stablehlo.tanh %{{.*}} {rhino.cone = 0 : i64, rhino.cone_root}
// CHECK-NEXT: %[[A:.*]] = stablehlo.abs %[[H]] {rhino.cone = 1 : i64}
// CHECK-NEXT: %[[B:.*]] = stablehlo.negate %[[A]] {rhino.cone = 1 : i64}
// CHECK-NEXT: %[[C:.*]] = stablehlo.sine %{{.*}} {rhino.cone = 1 : i64}
// CHECK-NEXT: %[[D:.*]] = stablehlo.add %[[B]], %[[C]] {rhino.cone = 1 : i64, rhino.cone_root}
// CHECK-NEXT: %[[ONE:.*]] = stablehlo.constant dense<1.000000e+00> : tensor<4xf32>
// CHECK-NEXT: %[[E:.*]] = stablehlo.multiply %[[H]], %[[ONE]] {rhino.cone = 2 : i64}
// CHECK-NEXT: %[[Y:.*]] = stablehlo.subtract %[[E]], %[[D]] {rhino.cone = 2 : i64, rhino.cone_root}
// CHECK-NEXT: %[[Z:.*]] = stablehlo.cosine %[[Y]] {rhino.cone = 3 : i64, rhino.cone_root}
// CHECK-NEXT: return %[[Z]]

// expected-remark@unknown {{[rhino-cones] 8 ops in 4 cones}}
func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
  %h = stablehlo.tanh %x : tensor<4xf32>
  %a = stablehlo.abs %h : tensor<4xf32>
  %b = stablehlo.negate %a : tensor<4xf32>
  %c = stablehlo.sine %w : tensor<4xf32>
  %d = stablehlo.add %b, %c : tensor<4xf32>
  %one = stablehlo.constant dense<1.0> : tensor<4xf32>
  %e = stablehlo.multiply %h, %one : tensor<4xf32>
  %y = stablehlo.subtract %e, %d : tensor<4xf32>
  %z = stablehlo.cosine %y : tensor<4xf32>
  return %z : tensor<4xf32>
}
