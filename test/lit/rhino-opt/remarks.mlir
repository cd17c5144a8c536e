// RUN: rhino-opt --auto-shard --cluster=v100x8 --remarks-filter='all_gather|all_to_all' %s 2>%t.err | filecheck %s
// RUN: cat %t.err | filecheck %s --check-prefix=WHY
// RUN: rhino-opt --auto-shard --cluster=v100x8 --remarks-filter=all_to_all --verify-diagnostics %s
// A remark says of every collective what it moves and for whom. Only those that the filter matches are printed, and
// under --verify-diagnostics they have to be expected.

// WHY: remarks.mlir:{{[0-9]+:[0-9]+}}: remark: [rhino-choose-shardings] all_to_all of 4 KiB, S1 to S0
// WHY-NOT: remark: [rhino-choose-shardings] step

// CHECK-LABEL: func.func @main(
// CHECK: sdy.sharding_constraint
sdy.mesh @mesh = <["x"=4]>
func.func @main(%x: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %y = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : tensor<64x64xf32>
  // expected-remark@+1 {{[rhino-choose-shardings] all_to_all of 4 KiB, S1 to S0, for 'sdy.sharding_constraint'}}
  %z = sdy.sharding_constraint %y <@mesh, [{"x"}, {}]> : tensor<64x64xf32>
  return %z : tensor<64x64xf32>
}
