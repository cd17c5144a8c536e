// RUN: rhino-opt --rhino-segments %s | filecheck %s
// RUN: rhino-opt --rhino-segments --verify-diagnostics --remarks-filter=segments: %s
// A program without a backward pass is cut at each critical node. What such a node needs is in its segment, as late as it may be: the mask of the
// second layer stands first, and belongs to the second layer. The layers in the middle are alike.

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[M:.*]] = stablehlo.abs %{{.*}} {rhino.fold = 1 : i64, rhino.segment = 1 : i64}
// CHECK-NEXT: %[[A:.*]] = stablehlo.dot_general {{.*}}{rhino.fold = 0 : i64, rhino.segment = 0 : i64}
// CHECK-NEXT: %[[B:.*]] = stablehlo.multiply %[[A]], %[[M]] {rhino.fold = 1 : i64, rhino.segment = 1 : i64}
// CHECK-NEXT: %[[C:.*]] = stablehlo.dot_general %[[B]]{{.*}}{rhino.fold = 1 : i64, rhino.segment = 1 : i64}
// CHECK-NEXT: %[[N:.*]] = stablehlo.abs %{{.*}} {rhino.fold = 1 : i64, rhino.segment = 2 : i64}
// CHECK-NEXT: %[[D:.*]] = stablehlo.multiply %[[C]], %[[N]] {rhino.fold = 1 : i64, rhino.segment = 2 : i64}
// CHECK-NEXT: %[[E:.*]] = stablehlo.dot_general %[[D]]{{.*}}{rhino.fold = 1 : i64, rhino.segment = 2 : i64}
// CHECK-NEXT: stablehlo.tanh %[[E]] {rhino.fold = 2 : i64, rhino.segment = 3 : i64}

// expected-remark@unknown {{[rhino-segments] segments: 4, unique: 3; the program runs one way}}
func.func @main(%x: tensor<8x8xf32>, %u: tensor<8x8xf32>, %v: tensor<8x8xf32>, %w: tensor<8x8xf32>, %m: tensor<8x8xf32>, %n: tensor<8x8xf32>)
    -> tensor<8x8xf32> {
  %mask = stablehlo.abs %m : tensor<8x8xf32>
  %a = stablehlo.dot_general %x, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = stablehlo.multiply %a, %mask : tensor<8x8xf32>
  %c = stablehlo.dot_general %b, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %other = stablehlo.abs %n : tensor<8x8xf32>
  %d = stablehlo.multiply %c, %other : tensor<8x8xf32>
  %e = stablehlo.dot_general %d, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %y = stablehlo.tanh %e : tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}
