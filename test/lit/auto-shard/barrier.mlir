// RUN: rhino-opt --auto-shard --cluster=cpu8 --mesh=4 %s | filecheck %s
// A barrier hands each operand on as it lies: one split by rows and one by columns, nothing whole.

// CHECK-LABEL: func.func public @main
// CHECK: %[[PASSED:.*]]:2 = stablehlo.optimization_barrier
// CHECK-SAME: [{"x"}, {}]>, <@mesh, [{}, {"x"}]>
func.func public @main(%a: tensor<4096x3xf32>, %b: tensor<3x4096xf32>) -> (tensor<4096x3xf32>, tensor<3x4096xf32>) {
  %c = stablehlo.exponential %a : tensor<4096x3xf32>
  %d = stablehlo.exponential %b : tensor<3x4096xf32>
  %p:2 = stablehlo.optimization_barrier %c, %d : tensor<4096x3xf32>, tensor<3x4096xf32>
  %e = stablehlo.sine %p#0 : tensor<4096x3xf32>
  %f = stablehlo.sine %p#1 : tensor<3x4096xf32>
  return %e, %f : tensor<4096x3xf32>, tensor<3x4096xf32>
}
