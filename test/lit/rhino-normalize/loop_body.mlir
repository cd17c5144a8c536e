// RUN: rhino-opt --rhino-normalize %s -o %t.mlir
// RUN: cat %t.mlir | filecheck %s
// RUN: rhino-run %t.mlir --compare=%s --int-range=4
// A call in a loop body is inlined there, and the program gives what it gave.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.while
// CHECK: } do {
// CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add
// CHECK-NEXT: %[[V:.*]] = stablehlo.cosine
// CHECK-NEXT: stablehlo.return %[[NEXT]], %[[V]]
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<4xf32>
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %w = func.call @body(%v) : (tensor<4xf32>) -> tensor<4xf32>
    stablehlo.return %j, %w : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}
func.func private @body(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.cosine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
