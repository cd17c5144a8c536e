// RUN: rhino-opt --rhino-choose-shardings --cluster=v100x8 %s | filecheck %s
// Where the shardings around an op do not say how it runs, `rhino.strategy` does: this product could be computed by rows, the
// columns exchanged for rows first, and it is a sum over the split factor `k` instead.

// CHECK-LABEL: func.func @product(
// CHECK: %[[P:.*]] = stablehlo.dot_general %{{.*}} {rhino.strategy = "k", {{.*}}sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>
// CHECK-NEXT: return %[[P]]
sdy.mesh @mesh = <["x"=4]>
func.func @product(%a: tensor<16x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %b: tensor<4096x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<16x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %p = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<16x4096xf32>, tensor<4096x1024xf32>) -> tensor<16x1024xf32>
  return %p : tensor<16x1024xf32>
}
