// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=4 %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=4 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=4 --form=localized
// The search goes into loops: the carried activations split the batch, in the body as outside, so no step of the loop sends anything.

// CHECK-LABEL: func.func @main(
// CHECK: %[[END:.*]]:2 = stablehlo.while(%{{.*}} = %{{.*}}, %[[V:.*]] = %{{.*}}) : {{.*}} attributes {rhino.carried = [#sdy.sharding<@mesh, []>, #sdy.sharding<@mesh, [{"x"}, {}]>]}
// CHECK-NEXT: cond {
// CHECK: } do {
// CHECK: %[[Y:.*]] = stablehlo.dot_general %[[V]], {{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: %[[U:.*]] = stablehlo.tanh %[[Y]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: stablehlo.return %{{.*}}, %[[U]]
// CHECK: return %[[END]]#1
func.func @main(%x: tensor<8192x64xf32>, %w: tensor<64x64xf32>) -> tensor<8192x64xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<8192x64xf32>
  cond {
    %more = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %y = stablehlo.dot_general %v, %w, contracting_dims = [1] x [0] : (tensor<8192x64xf32>, tensor<64x64xf32>) -> tensor<8192x64xf32>
    %u = stablehlo.tanh %y : tensor<8192x64xf32>
    stablehlo.return %j, %u : tensor<i32>, tensor<8192x64xf32>
  }
  return %end#1 : tensor<8192x64xf32>
}
