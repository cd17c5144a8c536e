// RUN: rhino-opt --rhino-normalize %s | filecheck %s
// A named computation is what it computes, between constraints where it says how its operands and results lie; a reshard is a constraint;
// a barrier to propagation is nothing.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<8x16xf32>
// CHECK-NEXT: %[[IN:.*]] = sdy.sharding_constraint %[[A]] <@mesh, [{}, {"x"}]>
// CHECK-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[IN]]
// CHECK-NEXT: %[[OUT:.*]] = sdy.sharding_constraint %[[TANH]] <@mesh, [{"x"}, {}]>
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[OUT]], %[[OUT]]
// CHECK-NEXT: %[[MOVED:.*]] = sdy.sharding_constraint %[[SUM]] <@mesh, [{}, {}]>
// CHECK-NEXT: return %[[MOVED]]
func.func @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %f = sdy.named_computation<"f">(%a) in_shardings=[<@mesh, [{}, {"x"}]>] out_shardings=[<@mesh, [{"x"}, {}]>] (%x: tensor<8x16xf32>) {
    %g = sdy.named_computation<"g">(%x) (%z: tensor<8x16xf32>) {
      %t = stablehlo.tanh %z : tensor<8x16xf32>
      sdy.return %t : tensor<8x16xf32>
    } : (tensor<8x16xf32>) -> tensor<8x16xf32>
    sdy.return %g : tensor<8x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %b = sdy.propagation_barrier %f allowed_direction=NONE : tensor<8x16xf32>
  %s = stablehlo.add %b, %b : tensor<8x16xf32>
  %r = sdy.reshard %s <@mesh, [{}, {}]> : tensor<8x16xf32>
  return %r : tensor<8x16xf32>
}
