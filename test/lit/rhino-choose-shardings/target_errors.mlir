// RUN: rhino-opt --rhino-choose-shardings --cluster=cpu8 --split-input-file --verify-diagnostics %s
// The module's mesh has to fit the cluster; its entry and its shardings have to be readable.

// expected-error@unknown {{[RHI-MESH-001] mesh x=16 has 16 devices, cluster 'cpu8' has 8}}
// expected-note@unknown {{the levels of 'cpu8' are 8 (shared memory)}}
// expected-note@unknown {{to fix: ask for at most 8 devices, e.g. --mesh=8, or a larger cluster}}
sdy.mesh @mesh = <["x"=16]>
func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
  return %x : tensor<16xf32>
}

// -----

// expected-error@unknown {{[RHI-READ-005]}}
// expected-note@unknown {{to fix: name the entry}}
func.func private @helper() {
  return
}

// -----

sdy.mesh @mesh = <["x"=4]>
// expected-error@+3 {{[RHI-SHARD-001] the sharding of argument 0 "arg0" cannot be honoured: dim 0 has size 6, which "x" (4) does not divide}}
// expected-note@+2 {{the sharding is #sdy.sharding<@mesh, [{"x"}]>}}
// expected-note@+1 {{to fix: choose dims that whole axes divide, leave the sharding open for the search, or let dim 0 be stored with 8 elements (--pad=NAME:0)}}
func.func @main(%x: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<6xf32> {
  return %x : tensor<6xf32>
}

// -----

sdy.mesh @mesh = <["x"=4]>
// expected-error@+3 {{[RHI-SHARD-001] the sharding of argument 0 "arg0" cannot be honoured: it is of mesh #sdy.mesh<["y"=2]>}}
// expected-note@+2 {{the sharding is #sdy.sharding<mesh<["y"=2]>, [{"y"}]>}}
// expected-note@+1 {{to fix: choose dims that whole axes divide}}
func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<mesh<["y"=2]>, [{"y"}]>}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
