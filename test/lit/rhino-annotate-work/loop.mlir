// RUN: rhino-opt --rhino-annotate-work %s | filecheck %s
// Ops in a loop's body get the work of one run; the loop itself and returns are no work of their own.

// CHECK-LABEL: func.func @twice(
// CHECK: stablehlo.while({{.*}}) : tensor<i32>, tensor<4xf32>{{$}}
// CHECK: } do {
// CHECK-NEXT: %[[J:.*]] = stablehlo.add %{{.*}} {rhino.work = {bytes = 12 : i64, flops = 1 : i64}} : tensor<i32>
// CHECK-NEXT: %[[U:.*]] = stablehlo.tanh %{{.*}} {rhino.work = {bytes = 32 : i64, flops = 4 : i64}} : tensor<4xf32>
// CHECK-NEXT: stablehlo.return %[[J]], %[[U]] : tensor<i32>, tensor<4xf32>
func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<4xf32>
  cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %u = stablehlo.tanh %v : tensor<4xf32>
    stablehlo.return %j, %u : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}
