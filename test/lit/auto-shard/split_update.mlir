// RUN: rhino-opt --auto-shard --localize --cluster=v100x8 %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=v100x8 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=4 --steps=2
// The batch is split, so the gradient is a sum over devices. Its update reads and writes more memory than it computes: each device
// stores, sums and updates a quarter, and the weight is gathered where the product needs it. This is ZeRO, found and not coded.

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[WHOLE:.*]] = "stablehlo.all_gather"(%[[WEIGHT:.*]]) {{.*}} -> tensor<64x64xf32>
// CHECK: %[[GRAD:.*]] = stablehlo.dot_general %{{.*}} contracting_dims = [0] x [0] : {{.*}} -> tensor<64x64xf32>
// CHECK-NEXT: %[[SUM:.*]] = "stablehlo.reduce_scatter"(%[[GRAD]])
// CHECK: }) : (tensor<64x64xf32>) -> tensor<16x64xf32>
// CHECK-NEXT: %[[MOMENTUM:.*]] = stablehlo.add %{{.*}}, %[[SUM]] : tensor<16x64xf32>
// CHECK: %[[UPDATED:.*]] = stablehlo.subtract %[[WEIGHT]], %{{.*}} : tensor<16x64xf32>
// CHECK-NEXT: return %[[UPDATED]], %[[MOMENTUM]] : tensor<16x64xf32>, tensor<16x64xf32>
sdy.mesh @mesh = <["x"=4]>
func.func @main(%x: tensor<65536x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %w: tensor<64x64xf32> {tf.aliasing_output = 0 : i32},
                %m: tensor<64x64xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<65536x64xf32>, tensor<64x64xf32>) -> tensor<65536x64xf32>
  %h = stablehlo.tanh %y : tensor<65536x64xf32>
  %grad = stablehlo.dot_general %x, %h, contracting_dims = [0] x [0] : (tensor<65536x64xf32>, tensor<65536x64xf32>) -> tensor<64x64xf32>
  %momentum = stablehlo.add %m, %grad : tensor<64x64xf32>
  %change = stablehlo.tanh %momentum : tensor<64x64xf32>
  %weight = stablehlo.subtract %w, %change : tensor<64x64xf32>
  return %weight, %momentum : tensor<64x64xf32>, tensor<64x64xf32>
}
