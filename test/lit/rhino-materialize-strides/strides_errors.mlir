// RUN: rhino-opt --rhino-materialize-strides --split-input-file --verify-diagnostics %s
// RUN: not --exit-code=2 rhino-opt --pass-pipeline="rhino-materialize-strides{parts=0}" %s 2>&1 | filecheck %s
// The program has to be readable, with one entry and shardings that the mesh has; and a block is divided into one part at least.

// CHECK: [RHI-PASS-001] pass 'rhino-materialize-strides' takes 1 part or more, not 0

// expected-error@unknown {{[RHI-READ-005]}}
// expected-note@unknown {{to fix: name the entry}}
func.func private @helper() {
  return
}

// -----

sdy.mesh @mesh = <["x"=4]>
// expected-error@+3 {{[RHI-SHARD-001] the sharding of argument 0 "arg0" cannot be honoured: dim 0 has size 6, which "x" (4) does not divide}}
// expected-note@+2 {{the sharding is #sdy.sharding<@mesh, [{"x"}]>}}
// expected-note@+1 {{to fix: choose dims that whole axes divide}}
func.func @main(%x: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<6xf32> {
  return %x : tensor<6xf32>
}
