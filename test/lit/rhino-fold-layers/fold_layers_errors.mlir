// RUN: rhino-opt --rhino-fold-layers --split-input-file --verify-diagnostics %s
// The program has to be readable: one entry, and shardings that the mesh has.

// expected-error@unknown {{[RHI-READ-005]}}
// expected-note@unknown {{to fix: name the entry}}
func.func private @helper() {
  return
}

// -----

sdy.mesh @mesh = <["x"=4]>
// expected-error@+3 {{[RHI-SHARD-001] the sharding of argument 0 "arg0" cannot be honoured: dim 0 has size 6}}
// expected-note@+2 {{the sharding is #sdy.sharding<@mesh, [{"x"}]>}}
// expected-note@+1 {{to fix}}
func.func @main(%x: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<6xf32> {
  return %x : tensor<6xf32>
}
