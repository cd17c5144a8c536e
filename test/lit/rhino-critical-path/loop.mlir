// RUN: rhino-opt --rhino-critical-path %s | filecheck %s
// A loop's body counts once, between what the loop starts with and who reads its end. The loop itself, and what depends on scalars alone,
// takes no time.

// CHECK-LABEL: func.func @main(
// CHECK: %[[X:.*]] = stablehlo.abs %{{.*}} {rhino.earliest = 0 : i64, rhino.latest = 0 : i64} : tensor<4xf32>
// CHECK: stablehlo.while({{.*}}) : tensor<i32>, tensor<4xf32>{{$}}
// CHECK: %[[J:.*]] = stablehlo.add %{{.*}} : tensor<i32>
// CHECK-NEXT: %[[U:.*]] = stablehlo.tanh %{{.*}} {rhino.earliest = 1 : i64, rhino.latest = 1 : i64} : tensor<4xf32>
// CHECK: stablehlo.negate %{{.*}} {rhino.earliest = 2 : i64, rhino.latest = 2 : i64} : tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %a = stablehlo.abs %x : tensor<4xf32>
  %end:2 = stablehlo.while(%i = %zero, %v = %a) : tensor<i32>, tensor<4xf32>
  cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %u = stablehlo.tanh %v : tensor<4xf32>
    stablehlo.return %j, %u : tensor<i32>, tensor<4xf32>
  }
  %y = stablehlo.negate %end#1 : tensor<4xf32>
  return %y : tensor<4xf32>
}
