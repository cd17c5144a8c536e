// RUN: rhino-opt --auto-shard --cluster=cpu4 --mesh=2 --budget=300KiB --remarks-filter=layouts %s 2>&1 | filecheck %s
// RUN: not --exit-code=3 rhino-opt --auto-shard --cluster=cpu4 --mesh=2 --budget=300KiB --micro-batches=1 %s 2>&1 | filecheck %s --check-prefix=WHOLE
// RUN: not --exit-code=3 rhino-opt --auto-shard --cluster=cpu4 --mesh=2 --budget=40KiB %s 2>&1 | filecheck %s --check-prefix=NEVER
// A step that fits in no other way is taken in the fewest micro-batches that fit, unless the user says how many. Where the
// weights alone are too much, no more of them are tried, and the error lists what was tried.

// CHECK: remark: [rhino-choose-layouts] no choice of shardings is predicted to fit 300 KiB per device; {{.*}}: planned in 4 micro-batches
// CHECK: rhino-opt: no choice of shardings is predicted to fit 300 KiB per device; {{.*}}: planned in 4 micro-batches
// CHECK: stablehlo.while

// WHOLE-NOT: planned in
// WHOLE: error: [RHI-SOLVE-001] no choice of shardings is predicted to fit 300 KiB per device
// WHOLE-NOT: in 2 micro-batches

// NEVER: error: [RHI-SOLVE-001] no choice of shardings is predicted to fit 40 KiB per device
// NEVER: note: in 2 micro-batches: no choice of shardings is predicted to fit 40 KiB per device
// NEVER-NEXT: note: with offloading and 2 micro-batches: no choice of shardings is predicted to fit 40 KiB
// NEVER-NEXT: note: to fix: raise --budget, use more devices, or a smaller batch; or --auto-parallel
func.func @step(%w: tensor<64x64xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<1024x64xf32>) -> tensor<64x64xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<1024x64xf32>, tensor<64x64xf32>) -> tensor<1024x64xf32>
  %t = stablehlo.tanh %y : tensor<1024x64xf32>
  %z = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0] : (tensor<1024x64xf32>, tensor<64x64xf32>) -> tensor<1024x64xf32>
  %u = stablehlo.tanh %z : tensor<1024x64xf32>
  %g = stablehlo.dot_general %t, %u, contracting_dims = [0] x [0] : (tensor<1024x64xf32>, tensor<1024x64xf32>) -> tensor<64x64xf32>
  %new = stablehlo.subtract %w, %g : tensor<64x64xf32>
  return %new : tensor<64x64xf32>
}
