// RUN: rhino-opt %s --rhino-pin --cluster=v100x8 --pin='loc:body/dot_general=[{}, {"x"}]' --forbid='loc:scan=y' --pin='loc:asked=[{?}, {"x"}]' \
// RUN:   | filecheck %s
// RUN: rhino-opt %s --auto-shard --localize --cluster=v100x8 --pin='loc:body/dot_general=[{}, {"x"}]' --forbid='loc:scan=y' | filecheck %s --check-prefix=RUNS
// What a loop carries is spoken of by the loop's location, ops in its body by their own; a constraint of the module and a pin hold
// together.

// CHECK-LABEL: func.func @main(
// CHECK: sdy.sharding_constraint %{{.*}} <@mesh, [{"y"}, {"x"}]> {rhino.provenance = ["the module", "pin 'loc:asked=[{?}, {\22x\22}]'"]}
// CHECK: stablehlo.while
// CHECK-SAME: attributes {rhino.carried = [#sdy.sharding<@mesh, [{?}, {?}], replicated={"y"}>, #sdy.sharding<@mesh, []>], rhino.provenance = ["forbid 'loc:scan=y'"]}
// CHECK: stablehlo.dot_general {{.*}} {rhino.provenance = ["pin 'loc:body/dot_general=[{}, {\22x\22}]'"], sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}

// RUNS: stablehlo.while
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %b = sdy.sharding_constraint %a <@mesh, [{"y"}, {?}]> : tensor<64x64xf32> loc("asked")
  %r:2 = stablehlo.while(%c = %b, %i = %zero) : tensor<64x64xf32>, tensor<i32>
  cond {
    %eight = stablehlo.constant dense<8> : tensor<i32>
    %less = stablehlo.compare LT, %i, %eight : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.add %i, %one : tensor<i32>
    %d = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("jit(step)/scan/body/dot_general")
    stablehlo.return %d, %n : tensor<64x64xf32>, tensor<i32>
  } loc("jit(step)/scan")
  return %r#0 : tensor<64x64xf32>
}
