// RUN: rhino-opt %s --rhino-pin --cluster=v100x8 --mesh=2x4 --pin='loc:mlp/dot_general=[{"x"}, {}]' --forbid='loc:*/tanh:tanh=y' | filecheck %s
// Ops are spoken of by the names of their locations, and by their own behind a colon. What depends on constants alone is not meant, also
// where it has such a location.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.constant dense<1.000000e+00>
// CHECK-NEXT: stablehlo.dot_general %{{.*}} {rhino.provenance = ["pin 'loc:mlp/dot_general=[{\22x\22}, {}]'"], sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
// CHECK-NEXT: stablehlo.add %{{[^{]*}} : tensor<64x64xf32>
// CHECK-NEXT: stablehlo.tanh %{{.*}} {rhino.provenance = ["forbid 'loc:*/tanh:tanh=y'"], sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {?}], replicated={"y"}>]>}
func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<64x64xf32> loc("jit(step)/mlp/dot_general")
  %h = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jit(step)/mlp/dot_general")
  %s = stablehlo.add %h, %one : tensor<64x64xf32> loc("jit(step)/mlp/tanh")
  %y = stablehlo.tanh %s : tensor<64x64xf32> loc("jit(step)/mlp/tanh")
  return %y : tensor<64x64xf32>
}
