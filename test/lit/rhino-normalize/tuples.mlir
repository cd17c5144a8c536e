// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// An element taken from a tuple is what the tuple was made of, and an op that is deprecated is put in its successor's terms.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<8x16xf32>, %[[Y:[a-z0-9]+]]: tensor<16x4xf32>
// CHECK: %[[DOT:.*]] = stablehlo.dot_general %[[X]], %[[Y]], contracting_dims = [1] x [0]
// CHECK-NEXT: return %[[DOT]]
func.func @main(%x: tensor<8x16xf32>, %y: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %inner = "stablehlo.tuple"(%y) : (tensor<16x4xf32>) -> tuple<tensor<16x4xf32>>
  %outer = "stablehlo.tuple"(%x, %inner) : (tensor<8x16xf32>, tuple<tensor<16x4xf32>>) -> tuple<tensor<8x16xf32>, tuple<tensor<16x4xf32>>>
  %left = "stablehlo.get_tuple_element"(%outer) {index = 0 : i32} : (tuple<tensor<8x16xf32>, tuple<tensor<16x4xf32>>>) -> tensor<8x16xf32>
  %rest = "stablehlo.get_tuple_element"(%outer) {index = 1 : i32} : (tuple<tensor<8x16xf32>, tuple<tensor<16x4xf32>>>) -> tuple<tensor<16x4xf32>>
  %right = "stablehlo.get_tuple_element"(%rest) {index = 0 : i32} : (tuple<tensor<16x4xf32>>) -> tensor<16x4xf32>
  %dot = "stablehlo.dot"(%left, %right) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %dot : tensor<8x4xf32>
}
