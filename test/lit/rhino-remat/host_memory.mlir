// RUN: rhino-opt --rhino-remat=host-share=1 %s | filecheck %s
// RUN: rhino-opt --rhino-remat='remat=1 offload=true cluster=h100x8' --remarks-filter=remat %s 2>&1 >/dev/null | filecheck %s --check-prefix=BOTH
// What three layers save for the backward pass goes to host memory once it is made, and comes back before it is first read; the last of them, with
// which the backward pass begins, saves nothing there. Where ops may run again as well, each value takes the cheaper way: most of these are made
// again in less than the 10 us that a transfer takes at least, and the one that is kept in any case goes to host memory.

// CHECK-LABEL: func.func @main(
// CHECK:      %[[T0:.*]] = stablehlo.tanh
// CHECK-NEXT: %[[T0H:.*]] = stablehlo.custom_call @annotate_device_placement(%[[T0]]) {{.*}}"pinned_host"
// CHECK-NEXT: %[[H0:.*]] = stablehlo.dot_general %[[T0]], %arg2
// CHECK-NEXT: %[[H0H:.*]] = stablehlo.custom_call @annotate_device_placement(%[[H0]]) {{.*}}"pinned_host"
// CHECK:      %[[T1:.*]] = stablehlo.tanh
// CHECK-NEXT: %[[T1H:.*]] = stablehlo.custom_call @annotate_device_placement(%[[T1]]) {{.*}}"pinned_host"
// CHECK:      %[[H1H:.*]] = stablehlo.custom_call @annotate_device_placement(%{{.*}}) {{.*}}"pinned_host"
// CHECK:      %[[T2:.*]] = stablehlo.tanh
// CHECK:      stablehlo.multiply %{{.*}}, %[[T2]]
// CHECK-NEXT: %[[H1:.*]] = stablehlo.custom_call @annotate_device_placement(%[[H1H]]) {{.*}}"device"
// CHECK-NEXT: stablehlo.dot_general %[[H1]], %
// CHECK:      %[[T1B:.*]] = stablehlo.custom_call @annotate_device_placement(%[[T1H]]) {{.*}}"device"
// CHECK-NEXT: stablehlo.dot_general %[[T1B]], %
// CHECK:      stablehlo.multiply %{{.*}}, %[[T1B]]
// CHECK-NEXT: stablehlo.custom_call @annotate_device_placement(%[[H0H]]) {{.*}}"device"
// CHECK:      stablehlo.custom_call @annotate_device_placement(%[[T0H]]) {{.*}}"device"

// BOTH: 136 KiB of 268 KiB are kept for the backward pass; 5 ops in 1 pieces run again, {{.*}} to bring 1 value (2 KiB) to host memory and back
func.func @main(%x: tensor<64x8xf32>, %up: tensor<8x256xf32>, %down: tensor<256x8xf32>) -> (tensor<8x256xf32>, tensor<256x8xf32>) {
  %a0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x256xf32>) -> tensor<64x256xf32>
  %t0 = stablehlo.tanh %a0 : tensor<64x256xf32>
  %h0 = stablehlo.dot_general %t0, %down, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x8xf32>) -> tensor<64x8xf32>
  %a1 = stablehlo.dot_general %h0, %up, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x256xf32>) -> tensor<64x256xf32>
  %t1 = stablehlo.tanh %a1 : tensor<64x256xf32>
  %h1 = stablehlo.dot_general %t1, %down, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x8xf32>) -> tensor<64x8xf32>
  %a2 = stablehlo.dot_general %h1, %up, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x256xf32>) -> tensor<64x256xf32>
  %t2 = stablehlo.tanh %a2 : tensor<64x256xf32>
  %h2 = stablehlo.dot_general %t2, %down, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x8xf32>) -> tensor<64x8xf32>
  %dd2 = stablehlo.dot_general %t2, %h2, contracting_dims = [0] x [0] : (tensor<64x256xf32>, tensor<64x8xf32>) -> tensor<256x8xf32>
  %dt2 = stablehlo.dot_general %h2, %down, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<256x8xf32>) -> tensor<64x256xf32>
  %da2 = stablehlo.multiply %dt2, %t2 : tensor<64x256xf32>
  %du2 = stablehlo.dot_general %h1, %da2, contracting_dims = [0] x [0] : (tensor<64x8xf32>, tensor<64x256xf32>) -> tensor<8x256xf32>
  %dh1 = stablehlo.dot_general %da2, %up, contracting_dims = [1] x [1] : (tensor<64x256xf32>, tensor<8x256xf32>) -> tensor<64x8xf32>
  %dd1 = stablehlo.dot_general %t1, %dh1, contracting_dims = [0] x [0] : (tensor<64x256xf32>, tensor<64x8xf32>) -> tensor<256x8xf32>
  %dt1 = stablehlo.dot_general %dh1, %down, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<256x8xf32>) -> tensor<64x256xf32>
  %da1 = stablehlo.multiply %dt1, %t1 : tensor<64x256xf32>
  %du1 = stablehlo.dot_general %h0, %da1, contracting_dims = [0] x [0] : (tensor<64x8xf32>, tensor<64x256xf32>) -> tensor<8x256xf32>
  %dh0 = stablehlo.dot_general %da1, %up, contracting_dims = [1] x [1] : (tensor<64x256xf32>, tensor<8x256xf32>) -> tensor<64x8xf32>
  %dd0 = stablehlo.dot_general %t0, %dh0, contracting_dims = [0] x [0] : (tensor<64x256xf32>, tensor<64x8xf32>) -> tensor<256x8xf32>
  %dt0 = stablehlo.dot_general %dh0, %down, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<256x8xf32>) -> tensor<64x256xf32>
  %da0 = stablehlo.multiply %dt0, %t0 : tensor<64x256xf32>
  %du0 = stablehlo.dot_general %x, %da0, contracting_dims = [0] x [0] : (tensor<64x8xf32>, tensor<64x256xf32>) -> tensor<8x256xf32>
  %du12 = stablehlo.add %du1, %du2 : tensor<8x256xf32>
  %du = stablehlo.add %du0, %du12 : tensor<8x256xf32>
  %dd12 = stablehlo.add %dd1, %dd2 : tensor<256x8xf32>
  %dd = stablehlo.add %dd0, %dd12 : tensor<256x8xf32>
  return %du, %dd : tensor<8x256xf32>, tensor<256x8xf32>
}
