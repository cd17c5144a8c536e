// RUN: rhino-opt --rhino-remat %s | filecheck %s
// RUN: rhino-opt --rhino-remat --remarks-filter=remat --verify-diagnostics %s
// RUN: rhino-opt --rhino-remat=remat=0 %s | filecheck %s --check-prefix=ALL
// Three layers, of which each makes a wide tensor from a narrow one. The backward pass begins with the last of them, so that stays as it is. The
// narrow tensor before it is kept, and the others are made again right before they are read, behind all that the backward pass has made so
// far: the gradient that comes in, which is read behind the barrier, and the share of the weight's. With keep=1 nothing changes.

// CHECK-LABEL: func.func @main(
// CHECK: %[[H1:.*]] = stablehlo.dot_general %{{.*}}, %arg2, {{.*}} -> tensor<64x8xf32>
// CHECK: %[[DU2:.*]] = stablehlo.dot_general {{.*}} -> tensor<8x256xf32>
// CHECK: %[[DH1:.*]] = stablehlo.dot_general {{.*}} -> tensor<64x8xf32>
// CHECK-NEXT: %[[B:.*]]:3 = stablehlo.optimization_barrier %arg0, %[[DU2]], %[[DH1]] :
// CHECK-NEXT: %[[A0:.*]] = stablehlo.dot_general %[[B]]#0, %arg1
// CHECK-NEXT: %[[T0:.*]] = stablehlo.tanh %[[A0]]
// CHECK-NEXT: %[[H0:.*]] = stablehlo.dot_general %[[T0]], %arg2
// CHECK-NEXT: %[[A1:.*]] = stablehlo.dot_general %[[H0]], %arg1
// CHECK-NEXT: %[[T1:.*]] = stablehlo.tanh %[[A1]]
// CHECK-NEXT: stablehlo.dot_general %[[T1]], %[[B]]#2
// CHECK-NEXT: stablehlo.dot_general %[[B]]#2, %arg2
// CHECK: stablehlo.add %{{.*}}, %[[B]]#1
// CHECK-NOT: optimization_barrier

// ALL-LABEL: func.func @main(
// ALL-NOT: optimization_barrier

// expected-remark@unknown {{138 KiB of 268 KiB are kept for the backward pass; 5 ops in 1 pieces run again}}
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
