// RUN: rhino-opt --rhino-remat=remat=1 %s | filecheck %s
// RUN: rhino-opt --rhino-remat=remat=0.9 --remarks-filter=stacks %s -o /dev/null 2>&1 | filecheck %s --check-prefix=REMARK
// RUN: rhino-opt --rhino-remat=remat=1 --auto-shard --cluster=cpu4 --remarks-filter=nothing %s | filecheck %s --check-prefix=SPLIT
// RUN: rhino-opt --auto-shard --cluster=cpu4 --mesh=2 --budget=300KiB %s | filecheck %s --check-prefix=UNASKED
// RUN: not --exit-code=3 rhino-opt --auto-shard --cluster=cpu4 --mesh=2 --budget=300KiB --remat=0 --micro-batches=1 %s 2>&1 | filecheck %s --check-prefix=KEPT
// RUN: not --exit-code=3 rhino-opt --auto-shard --cluster=cpu4 --mesh=2 --budget=100KiB --micro-batches=1 %s 2>&1 | filecheck %s --check-prefix=NEVER
// What a layer of a loop goes from is stacked in place of what it makes, which the backward loop's round computes again; what
// starts a round by its number is computed by that of the layer. A step that does not fit as it is is planned so unasked.

// CHECK-LABEL: func.func @layers(
// CHECK:      %[[F:.*]]:3 = stablehlo.while(%{{.*}} = %{{.*}}, %[[H:.*]] = %arg0, %[[STACK:.*]] = %{{.*}}) : tensor<i32>, tensor<64x64xf32>, tensor<8x64x64xf32>
// CHECK:      %[[ROW:.*]] = stablehlo.reshape %[[H]] : {{.*}} -> tensor<1x64x64xf32>
// CHECK-NEXT: stablehlo.dynamic_update_slice %[[STACK]], %[[ROW]]
// CHECK:      stablehlo.while(%{{.*}}, %[[ROWS:[a-zA-Z0-9_]+]] = %[[F]]#2
// CHECK:      %[[K:.*]] = stablehlo.subtract
// CHECK:      %[[TAKEN:.*]] = stablehlo.dynamic_slice %[[ROWS]], %[[K]], {{.*}} -> tensor<1x64x64xf32>
// CHECK-NEXT: %[[START:.*]] = stablehlo.reshape %[[TAKEN]]
// CHECK:      %[[N:.*]] = stablehlo.convert %[[K]] : (tensor<i32>) -> tensor<f32>
// CHECK:      %[[P:.*]] = stablehlo.dot_general %[[START]], %arg1
// CHECK:      %[[T:.*]] = stablehlo.tanh %{{.*}} : tensor<64x256xf32>
// CHECK-NEXT: %[[AS_ROW:.*]] = stablehlo.reshape %[[T]]
// CHECK-NEXT: %[[AGAIN:.*]] = stablehlo.reshape %[[AS_ROW]]
// CHECK:      stablehlo.multiply %{{.*}}, %[[AGAIN]] : tensor<64x256xf32>

// REMARK: remark: [rhino-remat] 128 KiB of 512 KiB that this loop stacks are kept; 5 ops of a round run again

// SPLIT-LABEL: func.func @layers(
// SPLIT: stablehlo.tanh %{{.*}} {sdy.sharding = {{.*}}} : tensor<64x256xf32>

// UNASKED: stablehlo.dynamic_update_slice {{.*}} -> tensor<8x64x64xf32>
// KEPT: error: [RHI-SOLVE-001] no choice of shardings is predicted to fit 300 KiB
// NEVER: error: [RHI-SOLVE-001] no choice of shardings is predicted to fit 100 KiB
// NEVER: note: with all that can be computed again for the backward pass: no choice of shardings is predicted to fit 100 KiB
func.func @layers(%x: tensor<64x64xf32>, %w: tensor<64x256xf32>) -> tensor<64x64xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<8x64x256xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %last = stablehlo.constant dense<7> : tensor<i32>
  %count = stablehlo.constant dense<8> : tensor<i32>
  %forward:3 = stablehlo.while(%i = %zero, %h = %x, %stack = %zeros) : tensor<i32>, tensor<64x64xf32>, tensor<8x64x256xf32>
  cond {
    %more = stablehlo.compare LT, %i, %count : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %number = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %numbers = stablehlo.broadcast_in_dim %number, dims = [] : (tensor<f32>) -> tensor<64x256xf32>
    %product = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x256xf32>) -> tensor<64x256xf32>
    %sum = stablehlo.add %product, %numbers : tensor<64x256xf32>
    %tanh = stablehlo.tanh %sum : tensor<64x256xf32>
    %next = stablehlo.dot_general %tanh, %w, contracting_dims = [1] x [1] : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<64x64xf32>
    %row = stablehlo.reshape %tanh : (tensor<64x256xf32>) -> tensor<1x64x256xf32>
    %rows = stablehlo.dynamic_update_slice %stack, %row, %i, %zero, %zero : (tensor<8x64x256xf32>, tensor<1x64x256xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<8x64x256xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next, %rows : tensor<i32>, tensor<64x64xf32>, tensor<8x64x256xf32>
  }
  %backward:3 = stablehlo.while(%i = %zero, %g = %forward#1, %stack = %forward#2) : tensor<i32>, tensor<64x64xf32>, tensor<8x64x256xf32>
  cond {
    %more = stablehlo.compare LT, %i, %count : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %k = stablehlo.subtract %last, %i : tensor<i32>
    %row = stablehlo.dynamic_slice %stack, %k, %zero, %zero, sizes = [1, 64, 256] : (tensor<8x64x256xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x256xf32>
    %tanh = stablehlo.reshape %row : (tensor<1x64x256xf32>) -> tensor<64x256xf32>
    %up = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x256xf32>) -> tensor<64x256xf32>
    %scaled = stablehlo.multiply %up, %tanh : tensor<64x256xf32>
    %down = stablehlo.dot_general %scaled, %w, contracting_dims = [1] x [1] : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<64x64xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %down, %stack : tensor<i32>, tensor<64x64xf32>, tensor<8x64x256xf32>
  }
  return %backward#1 : tensor<64x64xf32>
}
