// RUN: rhino-opt --rhino-segments %s | filecheck %s
// RUN: rhino-opt --rhino-segments --verify-diagnostics --remarks-filter=segments: %s
// Three layers, down and back up, with the update of their weights. Each layer's product stands in one segment with what leads to it, with
// both of its gradients, and with the update of its weight; the last has the loss too. A gradient's layer shows in the activation and the
// weight that it reads.

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[A1:.*]] = stablehlo.dot_general {{.*}}rhino.segment = 0 : i64
// CHECK-NEXT: %[[H1:.*]] = stablehlo.tanh %[[A1]] {{.*}}rhino.segment = 1 : i64
// CHECK-NEXT: %[[A2:.*]] = stablehlo.dot_general {{.*}}rhino.segment = 1 : i64
// CHECK-NEXT: %[[H2:.*]] = stablehlo.tanh %[[A2]] {{.*}}rhino.segment = 2 : i64
// CHECK-NEXT: %[[A3:.*]] = stablehlo.dot_general {{.*}}rhino.segment = 2 : i64
// CHECK-NEXT: %[[G3:.*]] = stablehlo.subtract %[[A3]], {{.*}}rhino.segment = 2 : i64
// CHECK-NEXT: %[[DW3:.*]] = stablehlo.dot_general %[[H2]], %[[G3]]{{.*}}rhino.segment = 2 : i64
// CHECK-NEXT: %[[DH2:.*]] = stablehlo.dot_general %[[G3]]{{.*}}rhino.segment = 2 : i64
// CHECK-NEXT: %[[G2:.*]] = stablehlo.multiply %[[DH2]], %[[H2]] {{.*}}rhino.segment = 2 : i64
// CHECK-NEXT: %[[DW2:.*]] = stablehlo.dot_general %[[H1]], %[[G2]]{{.*}}rhino.segment = 1 : i64
// CHECK-NEXT: %[[DH1:.*]] = stablehlo.dot_general %[[G2]]{{.*}}rhino.segment = 1 : i64
// CHECK-NEXT: %[[G1:.*]] = stablehlo.multiply %[[DH1]], %[[H1]] {{.*}}rhino.segment = 1 : i64
// CHECK-NEXT: %[[DW1:.*]] = stablehlo.dot_general %{{.*}}, %[[G1]]{{.*}}rhino.segment = 0 : i64
// CHECK-NEXT: stablehlo.subtract %{{.*}}, %[[DW1]] {{.*}}rhino.segment = 0 : i64
// CHECK-NEXT: stablehlo.subtract %{{.*}}, %[[DW2]] {{.*}}rhino.segment = 1 : i64
// CHECK-NEXT: stablehlo.subtract %{{.*}}, %[[DW3]] {{.*}}rhino.segment = 2 : i64

// expected-remark@unknown {{[rhino-segments] segments: 3, unique: 3; the program runs down and back up}}
func.func @main(%x: tensor<8x8xf32>, %t: tensor<8x8xf32>, %w1: tensor<8x8xf32>, %w2: tensor<8x8xf32>, %w3: tensor<8x8xf32>)
    -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %a1 = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %h1 = stablehlo.tanh %a1 : tensor<8x8xf32>
  %a2 = stablehlo.dot_general %h1, %w2, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %h2 = stablehlo.tanh %a2 : tensor<8x8xf32>
  %a3 = stablehlo.dot_general %h2, %w3, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %g3 = stablehlo.subtract %a3, %t : tensor<8x8xf32>
  %dw3 = stablehlo.dot_general %h2, %g3, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %dh2 = stablehlo.dot_general %g3, %w3, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %g2 = stablehlo.multiply %dh2, %h2 : tensor<8x8xf32>
  %dw2 = stablehlo.dot_general %h1, %g2, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %dh1 = stablehlo.dot_general %g2, %w2, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %g1 = stablehlo.multiply %dh1, %h1 : tensor<8x8xf32>
  %dw1 = stablehlo.dot_general %x, %g1, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %p1 = stablehlo.subtract %w1, %dw1 : tensor<8x8xf32>
  %p2 = stablehlo.subtract %w2, %dw2 : tensor<8x8xf32>
  %p3 = stablehlo.subtract %w3, %dw3 : tensor<8x8xf32>
  return %p1, %p2, %p3 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
