// RUN: rhino-opt --micro-batches=1 --auto-shard --cluster=cpu8 %s | filecheck %s
// RUN: rhino-opt --auto-parallel --stages=1 --micro-batches=1 --mesh=8 --cluster=cpu8 %s | filecheck %s --check-prefix=STAGE
// One micro-batch is the whole batch: what is parallel by hand stands as it did, and no loop is made; in
// one stage neither.

sdy.mesh @mesh = <["x"=8]>

// CHECK-LABEL: func.func @by_hand(
// CHECK-NOT: stablehlo.while
// CHECK: %[[PART:.*]] = sdy.manual_computation(
// CHECK: return %[[PART]]
// STAGE: phase = "step"
// STAGE-LABEL: func.func private @step_0(
// STAGE-NOT: stablehlo.while
// STAGE: %[[PART:.*]] = sdy.manual_computation(
// STAGE: return %[[PART]]
func.func @by_hand(%x: tensor<16x4xf32>) -> tensor<16x4xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%part: tensor<2x4xf32>) {
    %1 = stablehlo.add %part, %part : tensor<2x4xf32>
    sdy.return %1 : tensor<2x4xf32>
  } : (tensor<16x4xf32>) -> tensor<16x4xf32>
  return %0 : tensor<16x4xf32>
}
