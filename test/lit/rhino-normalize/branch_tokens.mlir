// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// RUN: rhino-opt --auto-shard --mesh=4 %s -o %t
// A branch may give tokens beside tensors: what it gives comes after the tokens of all branches.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[I:[a-z0-9]+]]: tensor<i32>, %[[X:[a-z0-9]+]]: tensor<4xi64>, %[[Y:[a-z0-9]+]]: tensor<4xi64>
// CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT: %[[T:.*]] = stablehlo.after_all : !stablehlo.token
// CHECK-NEXT: %[[S:.*]] = stablehlo.after_all %[[T]]
// CHECK-NEXT: %[[FIRST:.*]] = stablehlo.compare EQ, %[[I]], %[[ZERO]]
// CHECK-NEXT: %[[BOTH:.*]] = stablehlo.after_all %[[T]], %[[S]]
// CHECK-NEXT: %[[TENSOR:.*]] = stablehlo.select %[[FIRST]], %[[X]], %[[Y]]
// CHECK-NEXT: %[[LAST:.*]] = stablehlo.after_all %[[BOTH]]
// CHECK-NEXT: return %[[TENSOR]], %[[LAST]]
func.func @main(%i: tensor<i32>, %x: tensor<4xi64>, %y: tensor<4xi64>) -> (tensor<4xi64>, !stablehlo.token) {
  %t = stablehlo.after_all : !stablehlo.token
  %s = stablehlo.after_all %t : !stablehlo.token
  %0:2 = "stablehlo.case"(%i) ({
    stablehlo.return %t, %x : !stablehlo.token, tensor<4xi64>
  }, {
    stablehlo.return %s, %y : !stablehlo.token, tensor<4xi64>
  }) : (tensor<i32>) -> (!stablehlo.token, tensor<4xi64>)
  %u = stablehlo.after_all %0#0 : !stablehlo.token
  return %0#1, %u : tensor<4xi64>, !stablehlo.token
}
