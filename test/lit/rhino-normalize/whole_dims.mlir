// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// A window that covers a dim starts at zero there, so the program does not wait for where it would start.

// CHECK-LABEL: func.func @slice(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<8x16xf32>, %[[I:[a-z0-9]+]]: tensor<i32>, %[[J:[a-z0-9]+]]: tensor<i32>
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK-NEXT: %[[ROW:.*]] = stablehlo.dynamic_slice %[[X]], %[[I]], %[[ZERO]], sizes = [1, 16]
// CHECK-NEXT: %[[WRITTEN:.*]] = stablehlo.dynamic_update_slice %[[X]], %[[ROW]], %[[J]], %[[ZERO]]
// CHECK-NEXT: return %[[WRITTEN]]
func.func @slice(%x: tensor<8x16xf32>, %i: tensor<i32>, %j: tensor<i32>) -> tensor<8x16xf32> {
  %two = stablehlo.constant dense<2> : tensor<i32>
  %k = stablehlo.add %j, %two : tensor<i32>
  %0 = stablehlo.dynamic_slice %x, %i, %k, sizes = [1, 16] : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<1x16xf32>
  %1 = stablehlo.dynamic_update_slice %x, %0, %j, %k : (tensor<8x16xf32>, tensor<1x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
