// RUN: rhino-opt --rhino-choose-shardings --cluster=cpu4 --mesh=1 --budget=7MiB --offload %s | filecheck %s
// RUN: rhino-opt --rhino-choose-shardings --cluster=cpu4 --mesh=1 --budget=7MiB --offload --remarks-filter=memory %s 2>&1 >/dev/null | filecheck %s --check-prefix=REMARK
// RUN: rhino-opt --rhino-choose-shardings --cluster=cpu4 --mesh=1 --offload %s | filecheck %s --check-prefix=FITS
// RUN: not --exit-code=3 rhino-opt --rhino-choose-shardings --cluster=cpu4 --mesh=1 --budget=7MiB %s 2>&1 >/dev/null | filecheck %s --check-prefix=REFUSED
// RUN: rhino-opt --rhino-choose-shardings --cluster=cpu4 --mesh=2 --budget=4MiB --offload --rhino-localize %s | filecheck %s --check-prefix=LOCAL
// Where the budget binds, moments lie in host memory between steps: each comes to the device for its update, and its next value goes back.

// CHECK:       func.func @main(
// CHECK-SAME:    %arg2: tensor<512x512xf32> {sdy.sharding
// CHECK-SAME:    %arg3: tensor<512x512xf32> {mhlo.memory_kind = "pinned_host"
// CHECK-SAME:    %arg4: tensor<512x512xf32> {mhlo.memory_kind = "pinned_host"
// CHECK-SAME:  -> (tensor<512x512xf32> {sdy.sharding
// CHECK-SAME:    tensor<512x512xf32> {sdy.sharding
// CHECK-SAME:    tensor<512x512xf32> {mhlo.memory_kind = "pinned_host"
// CHECK-SAME:    tensor<512x512xf32> {mhlo.memory_kind = "pinned_host"
// CHECK-NOT:   annotate_device_placement

// REMARK: in host memory: 2 arguments, 2 MiB per device; 1.62 ms to bring them to the device and back

// FITS:     func.func @main(
// FITS-NOT: pinned_host

// REFUSED: [RHI-SOLVE-001]
// REFUSED: to fix: raise --budget, use more devices, or a smaller batch, or give --offload, for 2 MiB of arguments that only their update reads

// LOCAL:       func.func @main(
// LOCAL-SAME:    %[[M:arg3]]: tensor<256x512xf32> {mhlo.memory_kind = "pinned_host"
// LOCAL:         %[[HERE:.*]] = stablehlo.custom_call @annotate_device_placement(%[[M]]) {{.*}}_xla_buffer_placement = "device"
// LOCAL:         %[[NEW:.*]] = stablehlo.add %[[HERE]], %
// LOCAL:         %[[THERE:.*]] = stablehlo.custom_call @annotate_device_placement(%[[NEW]]) {{.*}}_xla_buffer_placement = "pinned_host"
// LOCAL:         return %{{.*}}, %{{.*}}, %[[THERE]], %
func.func @main(%x: tensor<512x512xf32>, %w: tensor<512x512xf32> {tf.aliasing_output = 0 : i32}, %u: tensor<512x512xf32> {tf.aliasing_output = 1 : i32},
                %m: tensor<512x512xf32> {tf.aliasing_output = 2 : i32}, %k: tensor<512x512xf32> {tf.aliasing_output = 3 : i32})
    -> (tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>, tensor<f32>) {
  %o = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %z = stablehlo.dot_general %y, %u, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %loss = stablehlo.reduce(%z init: %o) applies stablehlo.add across dimensions = [0, 1] : (tensor<512x512xf32>, tensor<f32>) -> tensor<f32>
  %g = stablehlo.dot_general %y, %z, contracting_dims = [0] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %d = stablehlo.dot_general %z, %u, contracting_dims = [1] x [1] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %h = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %n = stablehlo.add %m, %h : tensor<512x512xf32>
  %l = stablehlo.add %k, %g : tensor<512x512xf32>
  %v = stablehlo.subtract %w, %n : tensor<512x512xf32>
  %t = stablehlo.subtract %u, %l : tensor<512x512xf32>
  return %v, %t, %n, %l, %loss : tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>, tensor<f32>
}
