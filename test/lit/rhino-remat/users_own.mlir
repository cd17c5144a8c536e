// RUN: rhino-opt --rhino-remat %s | filecheck %s
// What the user computes again, as jax.checkpoint writes it, is left as it is: nothing runs a third time, and what the copies start from stays.

// CHECK-LABEL: func.func @main(
// CHECK-COUNT-5: stablehlo.tanh
// CHECK-NOT: stablehlo.tanh
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
  %b1:2 = stablehlo.optimization_barrier %h0, %dh1 : tensor<64x8xf32>, tensor<64x8xf32>
  %a1_again = stablehlo.dot_general %b1#0, %up, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x256xf32>) -> tensor<64x256xf32>
  %t1_again = stablehlo.tanh %a1_again : tensor<64x256xf32>
  %dd1 = stablehlo.dot_general %t1_again, %b1#1, contracting_dims = [0] x [0] : (tensor<64x256xf32>, tensor<64x8xf32>) -> tensor<256x8xf32>
  %dt1 = stablehlo.dot_general %dh1, %down, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<256x8xf32>) -> tensor<64x256xf32>
  %da1 = stablehlo.multiply %dt1, %t1_again : tensor<64x256xf32>
  %du1 = stablehlo.dot_general %h0, %da1, contracting_dims = [0] x [0] : (tensor<64x8xf32>, tensor<64x256xf32>) -> tensor<8x256xf32>
  %dh0 = stablehlo.dot_general %da1, %up, contracting_dims = [1] x [1] : (tensor<64x256xf32>, tensor<8x256xf32>) -> tensor<64x8xf32>
  %b0:2 = stablehlo.optimization_barrier %x, %dh0 : tensor<64x8xf32>, tensor<64x8xf32>
  %a0_again = stablehlo.dot_general %b0#0, %up, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x256xf32>) -> tensor<64x256xf32>
  %t0_again = stablehlo.tanh %a0_again : tensor<64x256xf32>
  %dd0 = stablehlo.dot_general %t0_again, %b0#1, contracting_dims = [0] x [0] : (tensor<64x256xf32>, tensor<64x8xf32>) -> tensor<256x8xf32>
  %dt0 = stablehlo.dot_general %dh0, %down, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<256x8xf32>) -> tensor<64x256xf32>
  %da0 = stablehlo.multiply %dt0, %t0_again : tensor<64x256xf32>
  %du0 = stablehlo.dot_general %x, %da0, contracting_dims = [0] x [0] : (tensor<64x8xf32>, tensor<64x256xf32>) -> tensor<8x256xf32>
  %du12 = stablehlo.add %du1, %du2 : tensor<8x256xf32>
  %du = stablehlo.add %du0, %du12 : tensor<8x256xf32>
  %dd12 = stablehlo.add %dd1, %dd2 : tensor<256x8xf32>
  %dd = stablehlo.add %dd0, %dd12 : tensor<256x8xf32>
  return %du, %dd : tensor<8x256xf32>, tensor<256x8xf32>
}
