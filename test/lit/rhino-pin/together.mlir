// RUN: rhino-opt %s --rhino-pin --cluster=v100x8 --pin='w=[{?}, {"y"}]' --forbid=w=x | filecheck %s
// A pin, the ban of an axis and what the module itself says hold together: one sharding says all three.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: rhino.provenance = ["the module", "pin 'w=[{?}, {\22y\22}]'", "forbid 'w=x'"]
// CHECK-SAME: sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y"}], replicated={"x"}>
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%w: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}]>} loc("w")) -> tensor<64x64xf32> {
  return %w : tensor<64x64xf32>
}
