// RUN: rhino-opt --rhino-remat="remat=1" %s | filecheck %s
// RUN: rhino-opt --rhino-remat="remat=1" --remarks-filter=remat --verify-diagnostics %s
// Both micro-batches are in flight in the first stage, which has read the whole batch before its backward pass begins. Its slices are kept: to
// slice it again would keep all of it, which takes as much. With a third micro-batch it is sliced again (stages.mlir).

// CHECK: %[[X:.*]] = stablehlo.dynamic_slice %arg0, {{.*}}rhino.virtual_stage = 0 : i64
// CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier {rhino.virtual_stage = 2 : i64} %[[X]], %{{.*}} : tensor<1x64x8xf32>, tensor<64x8xf32>
// CHECK-NEXT: %[[X2:.*]] = stablehlo.reshape %[[B]]#0 {rhino.virtual_stage = 2 : i64}
// CHECK-NEXT: %[[A2:.*]] = stablehlo.dot_general %[[X2]], %{{.*}}rhino.virtual_stage = 2 : i64
// CHECK-NEXT: %[[T2:.*]] = stablehlo.tanh %[[A2]] {rhino.virtual_stage = 2 : i64}

// expected-remark@unknown {{stage 0: 4 KiB of 66 KiB are kept for the backward pass; 2 ops in 1 pieces run again}}
// expected-remark@unknown {{stage 1: }}
func.func @main(%xs: tensor<2x64x8xf32>, %up: tensor<8x256xf32>, %down: tensor<256x8xf32>, %last: tensor<8x8xf32>)
    -> (tensor<256x8xf32>, tensor<8x8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %start = stablehlo.constant dense<0.0> : tensor<256x8xf32>
  %begin = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %end:3 = stablehlo.while(%i = %zero, %dd = %start, %dl = %begin) : tensor<i32>, tensor<256x8xf32>, tensor<8x8xf32>
    attributes {rhino.micro_batches = 2 : i64} cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %xi = stablehlo.dynamic_slice %xs, %i, %zero, %zero, sizes = [1, 64, 8] {rhino.virtual_stage = 0 : i64} : (tensor<2x64x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x8xf32>
    %x = stablehlo.reshape %xi {rhino.virtual_stage = 0 : i64} : (tensor<1x64x8xf32>) -> tensor<64x8xf32>
    %a = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] {rhino.virtual_stage = 0 : i64} : (tensor<64x8xf32>, tensor<8x256xf32>) -> tensor<64x256xf32>
    %t = stablehlo.tanh %a {rhino.virtual_stage = 0 : i64} : tensor<64x256xf32>
    %h = stablehlo.dot_general %t, %down, contracting_dims = [1] x [0] {rhino.virtual_stage = 0 : i64} : (tensor<64x256xf32>, tensor<256x8xf32>) -> tensor<64x8xf32>
    %o = stablehlo.dot_general %h, %last, contracting_dims = [1] x [0] {rhino.virtual_stage = 1 : i64} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %gl = stablehlo.dot_general %h, %o, contracting_dims = [0] x [0] {rhino.virtual_stage = 1 : i64} : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<8x8xf32>
    %gh = stablehlo.dot_general %o, %last, contracting_dims = [1] x [1] {rhino.virtual_stage = 1 : i64} : (tensor<64x8xf32>, tensor<8x8xf32>) -> tensor<64x8xf32>
    %gd = stablehlo.dot_general %t, %gh, contracting_dims = [0] x [0] {rhino.virtual_stage = 2 : i64} : (tensor<64x256xf32>, tensor<64x8xf32>) -> tensor<256x8xf32>
    %new_dd = stablehlo.add %dd, %gd {rhino.virtual_stage = 2 : i64} : tensor<256x8xf32>
    %new_dl = stablehlo.add %dl, %gl {rhino.virtual_stage = 1 : i64} : tensor<8x8xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %new_dd, %new_dl : tensor<i32>, tensor<256x8xf32>, tensor<8x8xf32>
  }
  return %end#1, %end#2 : tensor<256x8xf32>, tensor<8x8xf32>
}
