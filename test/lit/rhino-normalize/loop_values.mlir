// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// A zero that two loop values start from is one for each of them, and what a loop over micro-batches sums up is one value after it, however
// many read it there.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.*]]: tensor<4xf32>)
// CHECK: %[[FIRST:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
// CHECK: %[[SECOND:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
// CHECK: %[[END:.*]]:3 = stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %[[FIRST]], %{{.*}} = %[[SECOND]])
// CHECK: %[[SUM:.*]] = stablehlo.optimization_barrier %[[END]]#1 : tensor<4xf32>
// CHECK-NEXT: %[[U:.*]] = stablehlo.tanh %[[SUM]]
// CHECK-NEXT: %[[V:.*]] = stablehlo.abs %[[SUM]]
// CHECK-NEXT: return %[[U]], %[[V]], %[[END]]#2

func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %start = stablehlo.constant dense<0.0> : tensor<4xf32>
  %end:3 = stablehlo.while(%i = %zero, %a = %start, %b = %start) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    attributes {rhino.micro_batches = 2 : i64} cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %sum = stablehlo.add %a, %x : tensor<4xf32>
    %other = stablehlo.subtract %b, %x : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %sum, %other : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  %u = stablehlo.tanh %end#1 : tensor<4xf32>
  %v = stablehlo.abs %end#1 : tensor<4xf32>
  return %u, %v, %end#2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
