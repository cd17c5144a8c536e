// RUN: rhino-opt --rhino-critical-path %s | filecheck %s
// RUN: rhino-opt --rhino-critical-path="only-products=true" %s | filecheck %s --check-prefix=PRODUCTS
// RUN: rhino-opt --rhino-critical-path --verify-diagnostics --remarks-filter=long %s
// Two ways lead from the first product to the sum. With a unit of time for every op, that by three cheap ops is the longer, and the product
// beside them could start a unit later; if products alone take time, it is critical too.

// CHECK-LABEL: func.func @main(
// CHECK: %[[H:.*]] = stablehlo.dot_general {{.*}}{rhino.critical, rhino.earliest = 0 : i64, rhino.latest = 0 : i64}
// CHECK-NEXT: %[[A:.*]] = stablehlo.tanh %[[H]] {rhino.earliest = 1 : i64, rhino.latest = 1 : i64}
// CHECK-NEXT: %[[B:.*]] = stablehlo.abs %[[A]] {rhino.earliest = 2 : i64, rhino.latest = 2 : i64}
// CHECK-NEXT: %[[C:.*]] = stablehlo.sqrt %[[B]] {rhino.earliest = 3 : i64, rhino.latest = 3 : i64}
// CHECK-NEXT: %[[D:.*]] = stablehlo.dot_general %[[H]]{{.*}}{rhino.earliest = 1 : i64, rhino.latest = 2 : i64}
// CHECK-NEXT: %[[E:.*]] = stablehlo.negate %[[D]] {rhino.earliest = 2 : i64, rhino.latest = 3 : i64}
// CHECK-NEXT: stablehlo.add %[[C]], %[[E]] {rhino.earliest = 4 : i64, rhino.latest = 4 : i64}

// PRODUCTS-LABEL: func.func @main(
// PRODUCTS: stablehlo.dot_general {{.*}}{rhino.critical, rhino.earliest = 0 : i64, rhino.latest = 0 : i64}
// PRODUCTS-NEXT: stablehlo.tanh {{.*}}{rhino.earliest = 1 : i64, rhino.latest = 2 : i64}
// PRODUCTS: stablehlo.dot_general {{.*}}{rhino.critical, rhino.earliest = 1 : i64, rhino.latest = 1 : i64}

// expected-remark@unknown {{[rhino-critical-path] the critical path is 5 ops long; critical nodes: 1}}
func.func @main(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %a = stablehlo.tanh %h : tensor<8x8xf32>
  %b = stablehlo.abs %a : tensor<8x8xf32>
  %c = stablehlo.sqrt %b : tensor<8x8xf32>
  %d = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %e = stablehlo.negate %d : tensor<8x8xf32>
  %y = stablehlo.add %c, %e : tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}
