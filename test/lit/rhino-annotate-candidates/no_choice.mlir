// RUN: rhino-opt --rhino-annotate-candidates --cluster=cpu8 %s | filecheck %s
// An op without a choice gets no attribute: a loop, a scalar's op, a constant, and a tensor of which no dim divides by 8.

// CHECK-LABEL: func.func @small(
// CHECK-NOT: rhino.candidates
// CHECK: return
func.func @small(%x: tensor<3xf32>, %n: tensor<i32>) -> (tensor<3xf32>, tensor<i32>) {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %next = stablehlo.add %n, %one : tensor<i32>
  %y = stablehlo.tanh %x : tensor<3xf32>
  return %y, %next : tensor<3xf32>, tensor<i32>
}
