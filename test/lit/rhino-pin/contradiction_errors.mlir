// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --pin='w=[{}, {y}]' 2>&1 | filecheck %s --check-prefix=MODULE
// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --pin='v=[{x}, {}]' --pin='*v=[{?}, {y}]' 2>&1 | filecheck %s --check-prefix=PINS
// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --pin='v=[{x}, {}]' --forbid=v=x 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --pin='v=[{x}, {}]' --forbid='v=[{?}, {}]' 2>&1 | filecheck %s --check-prefix=FORBID
// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --pin='v=[{x}, {}]' --pin='result:0=[{}, {x}]' 2>&1 | filecheck %s --check-prefix=ALIAS
// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --pin='batch=[{}, {y}]' --axis-role=y=batch 2>&1 | filecheck %s --check-prefix=BATCH
// RUN: not rhino-opt %s --auto-shard --cluster=v100x8 --pin='loc:tanh=[{y}, {}]' --axis-role=y=model 2>&1 | filecheck %s --check-prefix=MODEL
// Constraints that cannot hold together are refused, and both sides are named.

// MODULE: error: [RHI-SHARD-001] the sharding of argument 1 "w" contradicts another constraint on it
// MODULE-NEXT: note: pin 'w=[{}, {y}]' asks for #sdy.sharding<@mesh, [{}, {"y"}]>
// MODULE-NEXT: note: against it stands #sdy.sharding<@mesh, [{"x"}, {}]>, of the module
// PINS: error: [RHI-SHARD-001] the sharding of argument 0 "v" contradicts another constraint on it
// PINS-NEXT: note: pin '*v=[{?}, {y}]' asks for #sdy.sharding<@mesh, [{?}, {"y"}]>
// PINS-NEXT: note: against it stands #sdy.sharding<@mesh, [{"x"}, {}]>, of pin 'v=[{x}, {}]'
// AXIS: error: [RHI-SHARD-001] the sharding of argument 0 "v" contradicts another constraint on it
// AXIS-NEXT: note: forbid 'v=x' asks for
// AXIS-NEXT: note: against it stands #sdy.sharding<@mesh, [{"x"}, {}]>, of pin 'v=[{x}, {}]'
// FORBID: error: [RHI-SHARD-001] the sharding of argument 0 "v" tensor<64x64xf32> contradicts another constraint on it
// FORBID-NEXT: note: it allows nothing
// FORBID-NEXT: note: pin 'v=[{x}, {}]' requires it
// FORBID-NEXT: note: forbid 'v=[{?}, {}]' requires it
// ALIAS: error: [RHI-SHARD-001] the sharding of argument 0 "v" tensor<64x64xf32> contradicts another constraint on it
// ALIAS-NEXT: note: it allows x:S0 y:R, and x:S1 y:R
// ALIAS-NEXT: note: pin 'v=[{x}, {}]' requires it
// ALIAS-NEXT: note: pin 'result:0=[{}, {x}]' requires it
// BATCH: error: [RHI-SHARD-001] the sharding of argument 2 "batch" tensor<32x64xf32> contradicts another constraint on it
// BATCH-NEXT: note: it allows x:R y:S1
// BATCH-NEXT: note: pin 'batch=[{}, {y}]' requires it
// BATCH-NEXT: note: axis-role y=batch leaves none of these: its dims of the batch are 0
// MODEL: error: [RHI-SHARD-001] the sharding of stablehlo.tanh in 'jit(step)/tanh' tensor<32x64xf32> contradicts another constraint on it
// MODEL-NEXT: note: it allows x:R y:S0
// MODEL-NEXT: note: pin 'loc:tanh=[{y}, {}]' requires it
// MODEL-NEXT: note: axis-role y=model leaves none of these: its dims of the batch are 0
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %v: tensor<64x64xf32> {tf.aliasing_output = 0 : i32} loc("v"),
    %w: tensor<64x64xf32> {tf.aliasing_output = 1 : i32, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} loc("w"),
    %x: tensor<32x64xf32> loc("batch")) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %h = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %t = stablehlo.tanh %h : tensor<32x64xf32> loc("jit(step)/tanh")
  %g = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  %n = stablehlo.add %v, %g : tensor<64x64xf32>
  %m = stablehlo.add %w, %g : tensor<64x64xf32>
  return %n, %m : tensor<64x64xf32>, tensor<64x64xf32>
}
