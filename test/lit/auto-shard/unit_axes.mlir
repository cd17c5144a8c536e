// RUN: rhino-opt --auto-shard %s -o %t.mlir
// RUN: rhino-opt %t.mlir | filecheck %s
// RUN: rhino-run %t.mlir
// Axes of one device split nothing, whoever names them: what is said of them holds as it is, and the plan leaves them out. The mesh keeps them.

// CHECK: sdy.mesh @mesh = <["x"=1, "y"=4, "z"=1, "w"=1]>
sdy.mesh @mesh = <["x"=1, "y"=4, "z"=1, "w"=1]>

// CHECK-LABEL: func.func @main(
// CHECK-SAME: {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}
// CHECK-SAME: {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
// CHECK-SAME: {sdy.sharding = #sdy.sharding<@mesh, [{}]>}
// CHECK-SAME: -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, tensor<0xf32>
func.func @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {"z"}]>},
    %w: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"w"}]>},
    %e: tensor<0xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
    -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"z", "w"}]>}, tensor<0xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %0 = sdy.manual_computation(%y) in_shardings=[<@mesh, [{"y"}, {"x"}]>] out_shardings=[<@mesh, [{"y", "z"}, {"w"}]>]
      manual_axes={"x", "y", "z", "w"} (%a: tensor<2x6xf32>) {
    %b = stablehlo.tanh %a : tensor<2x6xf32>
    sdy.return %b : tensor<2x6xf32>
  } : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %f = stablehlo.negate %e : tensor<0xf32>
  return %0, %f : tensor<8x6xf32>, tensor<0xf32>
}
