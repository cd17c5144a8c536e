// RUN: rhino-opt --auto-shard --localize --cluster=v100x8 %s 2>%t.err | filecheck %s
// RUN: cat %t.err | filecheck %s --check-prefix=SENT
// RUN: rhino-opt --auto-shard --cluster=v100x8 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=4 --form=localized
// Partial sums flow through what is linear: two products are added while both are still sums over devices, and one
// collective does for both.

// CHECK-LABEL: func.func @main(
// CHECK: %[[P:.*]] = stablehlo.dot_general %{{.*}} -> tensor<64x64xf32>
// CHECK-NEXT: %[[Q:.*]] = stablehlo.dot_general %{{.*}} -> tensor<64x64xf32>
// CHECK-NEXT: %[[BOTH:.*]] = stablehlo.add %[[P]], %[[Q]] : tensor<64x64xf32>
// CHECK: "stablehlo.reduce_scatter"(
// CHECK-NOT: stablehlo.all_reduce

// SENT: reduce_scatter 1 16 KiB
// SENT-NEXT: total 1 16 KiB
sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                        %b: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                        %c: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                        %d: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %p = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %q = stablehlo.dot_general %c, %d, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %both = stablehlo.add %p, %q : tensor<64x64xf32>
  %flat = stablehlo.reshape %both : (tensor<64x64xf32>) -> tensor<4096xf32>
  return %flat : tensor<4096xf32>
}
