// RUN: rhino-opt --rhino-remat %s | filecheck %s
// Random bits that follow from a state are made again from the same state, and so are the same; what a call gives, nobody else can make.

// CHECK-LABEL: func.func @main(
// CHECK: %{{.*}}, %[[BITS:.*]] = stablehlo.rng_bit_generator %[[STATE:.*]], algorithm = THREE_FRY
// CHECK: %[[NOISE:.*]] = stablehlo.custom_call @noise
// CHECK: %[[B:.*]]:{{.*}} = stablehlo.optimization_barrier
// CHECK-NOT: custom_call
// CHECK: stablehlo.rng_bit_generator %[[B]]#0, algorithm = THREE_FRY
// CHECK-NOT: custom_call
// CHECK: stablehlo.multiply %{{.*}}, %[[NOISE]]
func.func @main(%x: tensor<64x8xf32>, %up: tensor<8x256xf32>, %down: tensor<256x8xf32>, %key: tensor<2xui64>) -> (tensor<8x256xf32>, tensor<64x8xf32>) {
  %next, %bits = stablehlo.rng_bit_generator %key, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<64x256xui32>)
  %noise = stablehlo.custom_call @noise(%key) : (tensor<2xui64>) -> tensor<64x8xf32>
  %drawn = stablehlo.convert %bits : (tensor<64x256xui32>) -> tensor<64x256xf32>
  %a0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x256xf32>) -> tensor<64x256xf32>
  %t0 = stablehlo.multiply %a0, %drawn : tensor<64x256xf32>
  %h0 = stablehlo.dot_general %t0, %down, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x8xf32>) -> tensor<64x8xf32>
  %a1 = stablehlo.dot_general %h0, %up, contracting_dims = [1] x [0] : (tensor<64x8xf32>, tensor<8x256xf32>) -> tensor<64x256xf32>
  %t1 = stablehlo.tanh %a1 : tensor<64x256xf32>
  %h1 = stablehlo.dot_general %t1, %down, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x8xf32>) -> tensor<64x8xf32>
  %dt1 = stablehlo.dot_general %h1, %down, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<256x8xf32>) -> tensor<64x256xf32>
  %da1 = stablehlo.multiply %dt1, %t1 : tensor<64x256xf32>
  %du1 = stablehlo.dot_general %h0, %da1, contracting_dims = [0] x [0] : (tensor<64x8xf32>, tensor<64x256xf32>) -> tensor<8x256xf32>
  %dh0 = stablehlo.dot_general %da1, %up, contracting_dims = [1] x [1] : (tensor<64x256xf32>, tensor<8x256xf32>) -> tensor<64x8xf32>
  %dt0 = stablehlo.dot_general %dh0, %down, contracting_dims = [1] x [1] : (tensor<64x8xf32>, tensor<256x8xf32>) -> tensor<64x256xf32>
  %da0 = stablehlo.multiply %dt0, %drawn : tensor<64x256xf32>
  %du0 = stablehlo.dot_general %x, %da0, contracting_dims = [0] x [0] : (tensor<64x8xf32>, tensor<64x256xf32>) -> tensor<8x256xf32>
  %dx = stablehlo.dot_general %da0, %up, contracting_dims = [1] x [1] : (tensor<64x256xf32>, tensor<8x256xf32>) -> tensor<64x8xf32>
  %noisy = stablehlo.multiply %dx, %noise : tensor<64x8xf32>
  %du = stablehlo.add %du0, %du1 : tensor<8x256xf32>
  return %du, %noisy : tensor<8x256xf32>, tensor<64x8xf32>
}
