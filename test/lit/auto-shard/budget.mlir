// RUN: rhino-opt --auto-shard --cluster=cpu4 --budget=100KiB %s | filecheck %s
// RUN: not --exit-code=3 rhino-opt --auto-shard --cluster=cpu4 --budget=32KiB %s -o %t.mlir 2>&1 | filecheck %s --check-prefix=ERROR
// RUN: not --exit-code=1 rhino-opt %t.mlir 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not --exit-code=3 rhino-opt --auto-shard --cluster=cpu4 --budget=32KiB --forbid=arg0=x %s 2>&1 | filecheck %s --check-prefix=FORBID
// Under a budget the frozen weight is stored in parts and gathered when it is used. A budget below the parts is refused; the
// largest tensors are named with the least that they can take and what the user says of them, and no file is left.

// CHECK-LABEL: func.func @tight(
// CHECK-SAME: %[[W:.*]]: tensor<128x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{{.*}}{"x"}{{.*}}]>}

// ERROR: budget.mlir: error: [RHI-SOLVE-001] no choice of shardings is predicted to fit 32 KiB per device; {{.*}}the smallest plan that was found needs {{.*}} KiB
// ERROR-NEXT: note: at least {{.*}} KiB: {{.*}}tensor<128x128xf32>
// ERROR: note: to fix: raise --budget, {{.*}}; or --auto-parallel in place of --auto-shard
// FORBID: note: at least 64 KiB: argument 0 "arg0" tensor<128x128xf32>, under forbid 'arg0=x'{{$}}
// FORBID: note: to fix: {{.*}}, or remove the constraints on these tensors; or --auto-parallel
// NONE: error: [RHI-CLI-002] cannot read the module: No such file or directory
func.func @tight(%w: tensor<128x128xf32>, %x: tensor<128x128xf32>) -> tensor<128x128xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
  return %y : tensor<128x128xf32>
}
