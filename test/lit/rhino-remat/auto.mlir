// RUN: rhino-opt --rhino-remat=remat=auto %s | filecheck %s
// With remat=auto each stage recomputes the share that the cut in stages has left on the module, which is taken out: here all of the first
// stage's, which makes its wide tensor again in virtual stage 2.

// CHECK: module attributes {rhino.num_stages = 2 : i64} {
// CHECK: stablehlo.while
// CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier {rhino.virtual_stage = 2 : i64}
// CHECK: stablehlo.tanh {{.*}}rhino.virtual_stage = 2 : i64
module attributes {rhino.num_stages = 2 : i64, rhino.remat = array<f64: 1.0, 0.0>} {
  func.func @main(%xs: tensor<3x64x8xf32>, %up: tensor<8x256xf32>, %down: tensor<256x8xf32>, %last: tensor<8x8xf32>)
      -> (tensor<256x8xf32>, tensor<8x8xf32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %three = stablehlo.constant dense<3> : tensor<i32>
    %start = stablehlo.constant dense<0.0> : tensor<256x8xf32>
    %begin = stablehlo.constant dense<0.0> : tensor<8x8xf32>
    %end:3 = stablehlo.while(%i = %zero, %dd = %start, %dl = %begin) : tensor<i32>, tensor<256x8xf32>, tensor<8x8xf32>
      attributes {rhino.micro_batches = 3 : i64} cond {
      %more = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %xi = stablehlo.dynamic_slice %xs, %i, %zero, %zero, sizes = [1, 64, 8] {rhino.virtual_stage = 0 : i64} : (tensor<3x64x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x8xf32>
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
}
