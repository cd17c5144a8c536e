// RUN: rhino-opt --rhino-fold-layers=num-groups=2 --split-input-file %s | filecheck %s
// RUN: rhino-opt --rhino-fold-layers=num-groups=2 --split-input-file --remarks-filter=. -o - %s 2>&1 | filecheck %s --check-prefix=REMARK
// Six products make five layers that read alike, of which two are kept: each reads of the other as its neighbours did, and is marked on ops
// and arguments with its group and for how many layers it stands. What is outside of the layers stands for itself.
// REMARK: 5 layers of 2 ops are kept as 2

// CHECK: module attributes {rhino.folded}
// CHECK: func.func @main(%[[X:.*]]: tensor<8x16xf32>, %[[W0:.*]]: tensor<16x16xf32>, %[[W1:.*]]: tensor<16x16xf32> {rhino.group = array<i64: 0, 2, 0>}, %[[W3:.*]]: tensor<16x16xf32> {rhino.group = array<i64: 1, 3, 0>})
// CHECK-NEXT: %[[A:.*]] = stablehlo.dot_general %[[X]], %[[W0]]{{.*}}rhino.group = array<i64: -1, 1, 0>
// CHECK-NEXT: %[[B:.*]] = stablehlo.tanh %[[A]] {rhino.group = array<i64: 0, 2, 0>}
// CHECK-NEXT: %[[C:.*]] = stablehlo.dot_general %[[B]], %[[W1]]{{.*}}rhino.group = array<i64: 0, 2, 0>
// CHECK-NEXT: %[[D:.*]] = stablehlo.tanh %[[C]] {rhino.group = array<i64: 1, 3, 0>}
// CHECK-NEXT: %[[E:.*]] = stablehlo.dot_general %[[D]], %[[W3]]{{.*}}rhino.group = array<i64: 1, 3, 0>
// CHECK-NEXT: %[[F:.*]] = stablehlo.tanh %[[E]] {rhino.group = array<i64: -1, 1, 0>}
// CHECK-NEXT: return %[[F]]
func.func @main(%x: tensor<8x16xf32>, %w0: tensor<16x16xf32>, %w1: tensor<16x16xf32>, %w2: tensor<16x16xf32>, %w3: tensor<16x16xf32>, %w4: tensor<16x16xf32>, %w5: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %p0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %t0 = stablehlo.tanh %p0 : tensor<8x16xf32>
  %p1 = stablehlo.dot_general %t0, %w1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %t1 = stablehlo.tanh %p1 : tensor<8x16xf32>
  %p2 = stablehlo.dot_general %t1, %w2, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %t2 = stablehlo.tanh %p2 : tensor<8x16xf32>
  %p3 = stablehlo.dot_general %t2, %w3, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %t3 = stablehlo.tanh %p3 : tensor<8x16xf32>
  %p4 = stablehlo.dot_general %t3, %w4, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %t4 = stablehlo.tanh %p4 : tensor<8x16xf32>
  %p5 = stablehlo.dot_general %t4, %w5, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %t5 = stablehlo.tanh %p5 : tensor<8x16xf32>
  return %t5 : tensor<8x16xf32>
}

// -----

// Layers that read of one two before them, as well, have no neighbour alone to read of: all stay.
// CHECK-NOT: rhino.group
// CHECK: func.func @main
// CHECK-COUNT-6: stablehlo.dot_general
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %p0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %p1 = stablehlo.dot_general %p0, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %s1 = stablehlo.add %p1, %x : tensor<8x16xf32>
  %p2 = stablehlo.dot_general %s1, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %s2 = stablehlo.add %p2, %p0 : tensor<8x16xf32>
  %p3 = stablehlo.dot_general %s2, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %s3 = stablehlo.add %p3, %s1 : tensor<8x16xf32>
  %p4 = stablehlo.dot_general %s3, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %s4 = stablehlo.add %p4, %s2 : tensor<8x16xf32>
  %p5 = stablehlo.dot_general %s4, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %s5 = stablehlo.add %p5, %s3 : tensor<8x16xf32>
  return %s5 : tensor<8x16xf32>
}
