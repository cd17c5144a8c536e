// RUN: not --exit-code=2 rhino-opt %s --rhino-pin --pin='w=[{"x"}, }' 2>&1 | filecheck %s --check-prefix=TEXT
// RUN: not rhino-opt %s --rhino-pin --constraints=%S/none.toml 2>&1 | filecheck %s --check-prefix=NOFILE
// RUN: not rhino-opt %s --rhino-pin --constraints=%S/Inputs/no_toml.toml 2>&1 | filecheck %s --check-prefix=NOTOML
// RUN: not rhino-opt %s --rhino-pin --mesh=2x4 --pin='w=[{z}, {}]' 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not rhino-opt %s --rhino-pin --pin='layer.*.upp=[{}, {}]' 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not rhino-opt %s --rhino-pin --forbid='loc:jit(stop)/tanh=x' 2>&1 | filecheck %s --check-prefix=PLACE
// RUN: not rhino-opt %s --rhino-pin --pin='up=[{}]' 2>&1 | filecheck %s --check-prefix=RANK
// RUN: not rhino-opt %s --rhino-pin --mesh=8 --pin='up=[{x}, {}]' 2>&1 | filecheck %s --check-prefix=DIVIDES
// RUN: not rhino-opt %s --rhino-pin --axis-role=x=batch 2>&1 | filecheck %s --check-prefix=BATCH
// RUN: not rhino-opt %s --rhino-pin --axis-role=x=batch --axis-role=x=model 2>&1 | filecheck %s --check-prefix=ROLES
// A constraint that does not parse, speaks of nothing, or cannot hold is an error that quotes it.

// TEXT: error: [RHI-CLI-001] pin 'w=[{"x"}, }': got [{"x"}, }, expected a list of dims
// NOFILE: none.toml: error: [RHI-CLI-002] the file cannot be read: No such file or directory
// NOTOML: no_toml.toml: error: [RHI-PIN-001] not TOML
// AXIS: error: [RHI-PIN-002] pin 'w=[{z}, {}]': the mesh has no axis "z"; it is x=2,y=4
// NAME: error: [RHI-PIN-002] pin 'layer.*.upp=[{}, {}]' matches no tensor
// NAME-NEXT: note: to fix: did you mean params.layers.0.up?
// PLACE: error: [RHI-PIN-002] forbid 'loc:jit(stop)/tanh=x' matches no tensor
// PLACE-NEXT: note: to fix: did you mean jit(step)/tanh?
// RANK: error: [RHI-SHARD-001] the sharding of argument 0 "params['layers'][0]['up']" cannot be honoured: it lists 1 dims, and the tensor has 2
// RANK-NEXT: note: pin 'up=[{}]' requires it
// DIVIDES: error: [RHI-SHARD-001] {{.*}} cannot be honoured: dim 0 has size 12, which "x" (8) does not divide
// DIVIDES-NEXT: note: pin 'up=[{x}, {}]' requires it
// BATCH: error: [RHI-PIN-002] axis-role 'x=batch': the program has no batch dim
// BATCH-NEXT: note: of 1 arguments 1 are carried from step to step, and no other has a dim that these lack
// ROLES: error: [RHI-SHARD-001] axis-role 'x=model' contradicts axis-role 'x=batch'
func.func @main(%up: tensor<12x16xf32> {tf.aliasing_output = 0 : i32} loc("params['layers'][0]['up']")) -> tensor<12x16xf32> {
  %y = stablehlo.tanh %up : tensor<12x16xf32> loc("jit(step)/tanh")
  return %y : tensor<12x16xf32>
}
