// RUN: rhino-opt --rhino-shard-ranks='meshes=4;2' --split-input-file --verify-diagnostics %s
// RUN: not --exit-code=2 rhino-opt --rhino-shard-ranks='meshes=4;two' %s 2>&1 | filecheck %s --check-prefix=MESH
// A step that lies on a mesh of its own is no step for ranks of others; a step that is cut needs a mesh for each of its stages, and a loop over
// micro-batches.

// MESH: error: [RHI-CLI-001] mesh: got 'two'

// expected-error@unknown {{[RHI-MESH-002] the module has mesh @mesh (x=8), and ranks of unlike meshes were asked for}}
// expected-note@unknown {{to fix: remove the module's shardings, or give all ranks its mesh}}
sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// expected-error@unknown {{[RHI-STAGE-001] 2 meshes were given, and the module has 3 stages}}
// expected-note@unknown {{to fix: give a mesh for each stage, as 2x2;2;2}}
module attributes {rhino.num_stages = 3 : i64} {
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
}

// -----

// expected-error@unknown {{[RHI-SPLIT-001] the program needs one loop over micro-batches; it has none}}
// expected-note@unknown {{to fix: divide it first, for example with rhino-micro-batch{num=4}}}
module attributes {rhino.num_stages = 2 : i64} {
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
}
