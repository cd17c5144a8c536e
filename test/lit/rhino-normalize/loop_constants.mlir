// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// A mask that a loop carries only to read it is computed in its body, and no more outside; what else it carries stays.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.*]]: tensor<4xi32>)
// CHECK-NOT: stablehlo.iota
// CHECK: %[[END:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[A:.*]] = %[[X]]) : tensor<i32>, tensor<4xi32>
// CHECK: do {
// CHECK-NEXT: %[[COUNT:.*]] = stablehlo.iota dim = 0 : tensor<4xi32>
// CHECK-NEXT: %[[MASK:.*]] = stablehlo.negate %[[COUNT]] : tensor<4xi32>
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[A]], %[[MASK]] : tensor<4xi32>
// CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[I]], %{{.*}} : tensor<i32>
// CHECK-NEXT: stablehlo.return %[[NEXT]], %[[SUM]] : tensor<i32>, tensor<4xi32>
// CHECK: return %[[END]]#1 : tensor<4xi32>

func.func @main(%x: tensor<4xi32>) -> tensor<4xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %count = stablehlo.iota dim = 0 : tensor<4xi32>
  %mask = stablehlo.negate %count : tensor<4xi32>
  %end:3 = stablehlo.while(%i = %zero, %m = %mask, %a = %x) : tensor<i32>, tensor<4xi32>, tensor<4xi32> cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %sum = stablehlo.add %a, %m : tensor<4xi32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %m, %sum : tensor<i32>, tensor<4xi32>, tensor<4xi32>
  }
  return %end#2 : tensor<4xi32>
}
