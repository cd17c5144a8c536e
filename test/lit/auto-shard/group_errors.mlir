// RUN: rhino-opt --auto-shard --mesh=4 --verify-diagnostics %s
// Values in a sharding group would have to lie alike, which no constraint of the search says: they are not planned as if they need not.

func.func @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // expected-error@+2 {{[RHI-SHARD-001] 'sdy.sharding_group' cannot be honoured}}
  // expected-note@+1 {{to fix: plan for the program without it}}
  sdy.sharding_group %a group_id=0 : tensor<8x16xf32>
  return %a : tensor<8x16xf32>
}
