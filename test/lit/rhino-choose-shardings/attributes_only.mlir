// RUN: rhino-opt --rhino-choose-shardings --cluster=cpu4 --rhino-strip %s | filecheck %s
// The pass writes attributes and the mesh, and changes no op: dead ones and doubled ones are still there.

// CHECK: sdy.mesh @mesh = <["x"=4]>
// CHECK-LABEL: func.func @layer(
// CHECK-SAME: %[[X:.*]]: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{{.*}}]>, tf.aliasing_output = 0 : i32})
// CHECK-NEXT: %[[DEAD:.*]] = stablehlo.cosine %[[X]] {sdy.sharding = {{.*}}} : tensor<8x16xf32>
// CHECK-NEXT: %[[A:.*]] = stablehlo.sine %[[X]] {sdy.sharding = {{.*}}} : tensor<8x16xf32>
// CHECK-NEXT: %[[B:.*]] = stablehlo.sine %[[X]] {sdy.sharding = {{.*}}} : tensor<8x16xf32>
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[A]], %[[B]] {sdy.sharding = {{.*}}} : tensor<8x16xf32>
// CHECK-NEXT: return %[[SUM]]
func.func @layer(%x: tensor<8x16xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x16xf32> {
  %dead = stablehlo.cosine %x : tensor<8x16xf32>
  %a = stablehlo.sine %x : tensor<8x16xf32>
  %b = stablehlo.sine %x : tensor<8x16xf32>
  %sum = stablehlo.add %a, %b : tensor<8x16xf32>
  return %sum : tensor<8x16xf32>
}
