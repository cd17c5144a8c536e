// RUN: rhino-opt --auto-shard %s -o %t.mlir
// RUN: rhino-run %t.mlir
// RUN: rhino-opt --localize %t.mlir | filecheck %s
// A part that is parallel by hand stays as it is: what it reads is brought to it as it says, and its ops stand in the local program.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<2x16xf32>
// CHECK-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[A]] : tensor<2x16xf32>
// CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[TANH]])
// CHECK: %[[TWICE:.*]] = stablehlo.add %[[SUM]], %[[SUM]] : tensor<2x16xf32>
// CHECK-NEXT: return %[[TWICE]]
func.func @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %t = stablehlo.tanh %a : tensor<8x16xf32>
  %0 = sdy.manual_computation(%t) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"}
      (%x: tensor<2x16xf32>) {
    %s = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %r = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %r : tensor<f32>
    }) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    sdy.return %s : tensor<2x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = stablehlo.add %0, %0 : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
