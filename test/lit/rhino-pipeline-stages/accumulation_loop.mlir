// RUN: rhino-opt --rhino-pipeline-stages="stages=2 tolerance=0.2" %s | filecheck %s
// RUN: rhino-opt --rhino-pipeline-stages="stages=2 tolerance=0.2" --verify-diagnostics --remarks-filter=pipeline-stages %s
// RUN: rhino-opt --rhino-pipeline-stages=stages=2 --rhino-split-stages %s | filecheck %s --check-prefix=SPLIT
// Two layers with their backward pass, in two stages. Nothing says what is forward: the first layer is in virtual stage 0, the second with the
// loss and its own backward pass in 1, the backward pass of the first in 2, where its gradient is summed too. After the loop, each update is where its
// gradient is, and the labels are cut out where the loss reads them. Only the activation and its gradient cross.

// CHECK: module attributes {rhino.num_stages = 2 : i64}
// CHECK: %[[X:.*]] = stablehlo.dynamic_slice %arg0, {{.*}}rhino.virtual_stage = 0 : i64
// CHECK-NEXT: %[[MINE:.*]] = stablehlo.reshape %[[X]] {rhino.virtual_stage = 0 : i64}
// CHECK-NEXT: %[[Y:.*]] = stablehlo.dynamic_slice %arg1, {{.*}}rhino.virtual_stage = 1 : i64
// CHECK-NEXT: %[[LABELS:.*]] = stablehlo.reshape %[[Y]] {rhino.virtual_stage = 1 : i64}
// CHECK-NEXT: %[[A:.*]] = stablehlo.dot_general %[[MINE]], %arg2, {{.*}}rhino.virtual_stage = 0 : i64
// CHECK-NEXT: %[[H:.*]] = stablehlo.tanh %[[A]] {rhino.virtual_stage = 0 : i64}
// CHECK-NEXT: %[[O:.*]] = stablehlo.dot_general %[[H]], %arg3, {{.*}}rhino.virtual_stage = 1 : i64
// CHECK-NEXT: %[[G:.*]] = stablehlo.subtract %[[O]], %[[LABELS]] {rhino.virtual_stage = 1 : i64}
// CHECK-NEXT: %[[DV:.*]] = stablehlo.dot_general %[[H]], %[[G]], {{.*}}rhino.virtual_stage = 1 : i64
// CHECK-NEXT: %[[DH:.*]] = stablehlo.dot_general %[[G]], %arg3, {{.*}}rhino.virtual_stage = 1 : i64
// CHECK-NEXT: %[[DA:.*]] = stablehlo.multiply %[[DH]], %[[H]] {rhino.virtual_stage = 2 : i64}
// CHECK-NEXT: %[[DU:.*]] = stablehlo.dot_general %[[MINE]], %[[DA]], {{.*}}rhino.virtual_stage = 2 : i64
// CHECK-NEXT: stablehlo.add %{{.*}}, %[[DU]] {rhino.virtual_stage = 2 : i64}
// CHECK-NEXT: stablehlo.add %{{.*}}, %[[DV]] {rhino.virtual_stage = 1 : i64}
// CHECK: stablehlo.subtract %arg2, %{{.*}} {rhino.stage = 0 : i64}
// CHECK-NEXT: stablehlo.subtract %arg3, %{{.*}} {rhino.stage = 1 : i64}

// SPLIT: @forward_0
// SPLIT: @backward_1
// SPLIT: @backward_0

// expected-remark@unknown {{16 KiB move between stages per step in 4 transfers, at most 0.00% over the least cost}}
// expected-remark@unknown {{stage 0: }}
// expected-remark@unknown {{stage 1: }}
// expected-remark@unknown {{between stages 0 and 1: 16 KiB per step}}
func.func @main(%x: tensor<2x32x32xf32>, %y: tensor<2x32x32xf32>, %u: tensor<32x32xf32> {tf.aliasing_output = 0 : i32},
    %v: tensor<32x32xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<32x32xf32>, tensor<32x32xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %start = stablehlo.constant dense<0.0> : tensor<32x32xf32>
  %end:3 = stablehlo.while(%i = %zero, %du = %start, %dv = %start) : tensor<i32>, tensor<32x32xf32>, tensor<32x32xf32>
    attributes {rhino.micro_batches = 2 : i64} cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %xi = stablehlo.dynamic_slice %x, %i, %zero, %zero, sizes = [1, 32, 32] : (tensor<2x32x32xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x32x32xf32>
    %mine = stablehlo.reshape %xi : (tensor<1x32x32xf32>) -> tensor<32x32xf32>
    %yi = stablehlo.dynamic_slice %y, %i, %zero, %zero, sizes = [1, 32, 32] : (tensor<2x32x32xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x32x32xf32>
    %labels = stablehlo.reshape %yi : (tensor<1x32x32xf32>) -> tensor<32x32xf32>
    %a = stablehlo.dot_general %mine, %u, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %h = stablehlo.tanh %a : tensor<32x32xf32>
    %o = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %g = stablehlo.subtract %o, %labels : tensor<32x32xf32>
    %gv = stablehlo.dot_general %h, %g, contracting_dims = [0] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %dh = stablehlo.dot_general %g, %v, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %da = stablehlo.multiply %dh, %h : tensor<32x32xf32>
    %gu = stablehlo.dot_general %mine, %da, contracting_dims = [0] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %new_du = stablehlo.add %du, %gu : tensor<32x32xf32>
    %new_dv = stablehlo.add %dv, %gv : tensor<32x32xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %new_du, %new_dv : tensor<i32>, tensor<32x32xf32>, tensor<32x32xf32>
  }
  %new_u = stablehlo.subtract %u, %end#1 : tensor<32x32xf32>
  %new_v = stablehlo.subtract %v, %end#2 : tensor<32x32xf32>
  return %new_u, %new_v : tensor<32x32xf32>, tensor<32x32xf32>
}
