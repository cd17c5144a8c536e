// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --scope='mpl=split' 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --mesh=8 --scope='mlp=replicate' --scope='up=split(8)' 2>&1 | filecheck %s --check-prefix=BOTH
// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --mesh=8 --scope='mlp=replicate' --pin='w=[{x}, {}]' 2>&1 | filecheck %s --check-prefix=ARGUMENT
// A scope that finds nothing, wants devices that are not there, or contradicts another constraint is refused; both sides are named.

// NAME: error: [RHI-PIN-002] scope 'mpl=split' matches no scope
// NAME-NEXT: note: to fix: did you mean step/mlp
// BOTH: error: [RHI-SHARD-001] replicate and split(8) around 'stablehlo.dot_general' in 'jit(step)/mlp/up/dot_general': the mesh x=8 has no axes for each
// BOTH-NEXT: note: scope 'mlp=replicate' requires it
// BOTH-NEXT: note: scope 'up=split(8)' requires it
// ARGUMENT: error: [RHI-SHARD-001] the sharding of argument 0 "w" tensor<64x64xf32> contradicts another constraint on it
// ARGUMENT-NEXT: note: it allows S0
// ARGUMENT-NEXT: note: pin 'w=[{x}, {}]' requires it
// ARGUMENT-NEXT: note: replicate keeps whole what is read by 'stablehlo.dot_general' in 'jit(step)/mlp/up/dot_general'
func.func @main(%w: tensor<64x64xf32> {tf.aliasing_output = 0 : i32} loc("w"), %x: tensor<12x64xf32> loc("x")) -> tensor<64x64xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<12x64xf32>, tensor<64x64xf32>) -> tensor<12x64xf32> loc("jit(step)/mlp/up/dot_general")
  %t = stablehlo.tanh %h : tensor<12x64xf32> loc("jit(step)/mlp/act/tanh")
  %g = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<12x64xf32>, tensor<12x64xf32>) -> tensor<64x64xf32> loc("jit(step)/grad/dot_general")
  %n = stablehlo.subtract %w, %g : tensor<64x64xf32> loc("jit(step)/update/sub")
  return %n : tensor<64x64xf32>
}
