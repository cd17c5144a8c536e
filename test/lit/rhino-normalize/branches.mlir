// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// RUN: rhino-opt --auto-shard --mesh=4 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --int-range=5
// Branches that compute element by element become selections, inner ones first, the last branch standing for all other numbers; a value
// that every branch gives needs none. A branch with a product is a loop of one trip or none, which starts from what the other one gives; it
// reads through a barrier, so that no compiler takes the product out of it. Without another one it starts from zeros.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[I:[a-z0-9]+]]: tensor<i32>, %[[P:[a-z0-9]+]]: tensor<i1>, %[[X:[a-z0-9]+]]: tensor<8x8xf32>
// CHECK-NEXT: %[[FALSE:.*]] = stablehlo.constant dense<false>
// CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[X]]
// CHECK-NEXT: %[[NEGATED:.*]] = stablehlo.negate %[[X]]
// CHECK-NEXT: %[[INNER:.*]] = stablehlo.select %[[P]], %[[TANH]], %[[NEGATED]]
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[X]], %[[X]]
// CHECK-NEXT: %[[FIRST:.*]] = stablehlo.compare EQ, %[[I]], %[[ZERO]]
// CHECK-NEXT: %[[OUTER:.*]] = stablehlo.select %[[FIRST]], %[[INNER]], %[[SUM]]
// CHECK-NEXT: %[[ONCE:.*]]:2 = stablehlo.while(%[[FLAG:.*]] = %[[P]], %{{.*}} = %[[X]]) : tensor<i1>, tensor<8x8xf32>
// CHECK-NEXT: cond {
// CHECK-NEXT: stablehlo.return %[[FLAG]]
// CHECK-NEXT: } do {
// CHECK-NEXT: %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[FLAG]], %[[X]]
// CHECK-NEXT: %[[PRODUCT:.*]] = stablehlo.dot_general %[[HELD]]#1, %[[HELD]]#1
// CHECK-NEXT: stablehlo.return %[[FALSE]], %[[PRODUCT]]
// CHECK: %[[EMPTY:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<8x8xf32>
// CHECK-NEXT: %[[YES:.*]]:2 = stablehlo.while(%{{.*}} = %[[P]], %{{.*}} = %[[EMPTY]])
// CHECK: %[[NOT:.*]] = stablehlo.not %[[P]]
// CHECK-NEXT: %[[EITHER:.*]]:2 = stablehlo.while(%{{.*}} = %[[NOT]], %{{.*}} = %[[YES]]#1)
// CHECK: return %[[OUTER]], %[[X]], %[[ONCE]]#1, %[[EITHER]]#1
func.func @main(%i: tensor<i32>, %p: tensor<i1>, %x: tensor<8x8xf32>)
    -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %outer:2 = "stablehlo.case"(%i) ({
    %inner = "stablehlo.if"(%p) ({
      %a = stablehlo.tanh %x : tensor<8x8xf32>
      stablehlo.return %a : tensor<8x8xf32>
    }, {
      %b = stablehlo.negate %x : tensor<8x8xf32>
      stablehlo.return %b : tensor<8x8xf32>
    }) : (tensor<i1>) -> tensor<8x8xf32>
    stablehlo.return %inner, %x : tensor<8x8xf32>, tensor<8x8xf32>
  }, {
    %c = stablehlo.add %x, %x : tensor<8x8xf32>
    stablehlo.return %c, %x : tensor<8x8xf32>, tensor<8x8xf32>
  }) : (tensor<i32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %kept = "stablehlo.if"(%p) ({
    %d = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %d : tensor<8x8xf32>
  }, {
    stablehlo.return %x : tensor<8x8xf32>
  }) : (tensor<i1>) -> tensor<8x8xf32>
  %either = "stablehlo.if"(%p) ({
    %e = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %e : tensor<8x8xf32>
  }, {
    %f = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %f : tensor<8x8xf32>
  }) : (tensor<i1>) -> tensor<8x8xf32>
  return %outer#0, %outer#1, %kept, %either : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
