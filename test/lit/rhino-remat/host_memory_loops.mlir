// RUN: rhino-opt --rhino-remat=host-share=1 %s | filecheck %s
// RUN: rhino-opt --rhino-remat=host-share=1 --auto-shard --cluster=cpu4 --mesh=2 --remarks-filter=nothing %s | filecheck %s --check-prefix=SPLIT
// A loop stacks what its backward loop reads: each row goes to host memory where it is written, and comes back where it is read.

// CHECK-LABEL: func.func @main(
// CHECK:      stablehlo.while
// CHECK:      %[[ROW:.*]] = stablehlo.reshape %{{.*}} -> tensor<1x64x64xf32>
// CHECK-NEXT: %[[THERE:.*]] = stablehlo.custom_call @annotate_device_placement(%[[ROW]]) {{.*}}"pinned_host"
// CHECK-NEXT: stablehlo.dynamic_update_slice %{{.*}}, %[[THERE]], %
// CHECK:      stablehlo.while
// CHECK:      %[[READ:.*]] = stablehlo.dynamic_slice {{.*}} -> tensor<1x64x64xf32>
// CHECK-NEXT: %[[HERE:.*]] = stablehlo.custom_call @annotate_device_placement(%[[READ]]) {{.*}}"device"
// CHECK-NEXT: stablehlo.reshape %[[HERE]]

// SPLIT: stablehlo.custom_call @annotate_device_placement{{.*}}sdy.sharding
func.func @main(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<8x64x64xf32>
  %o = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %last = stablehlo.constant dense<7> : tensor<i32>
  %n = stablehlo.constant dense<8> : tensor<i32>
  %f:3 = stablehlo.while(%i = %o, %h = %x, %stack = %zero) : tensor<i32>, tensor<64x64xf32>, tensor<8x64x64xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %p = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %t = stablehlo.tanh %p : tensor<64x64xf32>
    %row = stablehlo.reshape %t : (tensor<64x64xf32>) -> tensor<1x64x64xf32>
    %new = stablehlo.dynamic_update_slice %stack, %row, %i, %o, %o : (tensor<8x64x64xf32>, tensor<1x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<8x64x64xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %t, %new : tensor<i32>, tensor<64x64xf32>, tensor<8x64x64xf32>
  }
  %b:3 = stablehlo.while(%i = %o, %g = %f#1, %stack = %f#2) : tensor<i32>, tensor<64x64xf32>, tensor<8x64x64xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %k = stablehlo.subtract %last, %i : tensor<i32>
    %row = stablehlo.dynamic_slice %stack, %k, %o, %o, sizes = [1, 64, 64] : (tensor<8x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
    %t = stablehlo.reshape %row : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
    %m = stablehlo.multiply %g, %t : tensor<64x64xf32>
    %d = stablehlo.dot_general %m, %w, contracting_dims = [1] x [1] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %d, %stack : tensor<i32>, tensor<64x64xf32>, tensor<8x64x64xf32>
  }
  %u = stablehlo.subtract %w, %b#1 : tensor<64x64xf32>
  return %u : tensor<64x64xf32>
}
