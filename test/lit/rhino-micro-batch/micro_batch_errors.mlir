// RUN: rhino-opt --micro-batches=4 --split-input-file --verify-diagnostics %s
// RUN: not --exit-code=2 rhino-opt --micro-batches=0 %S/sums.mlir 2>&1 | filecheck %s --check-prefix=ZERO
// RUN: not rhino-opt --micro-batches=2 --batch=z %S/named.mlir 2>&1 | filecheck %s --check-prefix=NOBODY
// RUN: not rhino-opt --micro-batches=2 --batch=weights:3 %S/named.mlir 2>&1 | filecheck %s --check-prefix=DEEP
// A step that cannot take its batch in so many parts is refused, with the place where it cannot.

// ZERO: error: [RHI-BATCH-001] 0 micro-batches
// NOBODY: error: [RHI-BATCH-007] batch 'z' matches no argument
// DEEP: error: [RHI-BATCH-007] batch 'weights:3': argument 2 "weights" tensor<8xf32> has no dim 3

// expected-error@+2 {{[RHI-BATCH-003] 4 micro-batches do not divide the batch: dim 0 of argument 1 "arg1" tensor<6x5xf32> has size 6}}
  // expected-note@+1 {{to fix: ask for one of 1, 2, 3, 6}}
func.func @uneven(%w: tensor<5xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<6x5xf32>) -> tensor<5xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<6x5xf32>, tensor<f32>) -> tensor<5xf32>
  %new = stablehlo.add %w, %s : tensor<5xf32>
  return %new : tensor<5xf32>
}

// -----

func.func @statistics(%w: tensor<5x5xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x5xf32>) -> tensor<5x5xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x5xf32>, tensor<5x5xf32>) -> tensor<8x5xf32>
  %s = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x5xf32>, tensor<f32>) -> tensor<5xf32>
  %all = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<5xf32>) -> tensor<8x5xf32>
  // expected-error@+6 {{[RHI-BATCH-004] micro-batches would have to synchronize: 'stablehlo.subtract' reads a part of the batch and needs a value of the whole batch}}
  // expected-note@+5 {{it is known only after all micro-batches have computed stablehlo.reduce tensor<5xf32> at}}
  // expected-note@+4 {{it is operand 1, stablehlo.broadcast_in_dim tensor<8x5xf32>}}
  // expected-note@+3 {{work of each micro-batch waits for it: stablehlo.dot_general tensor<5x5xf32> at}}
  // expected-note@+2 {{the batch is taken to be dim 0 of argument 1 "arg1" tensor<8x5xf32>}}
  // expected-note@+1 {{to fix: take it of each micro-batch with --batch-statistics=per-part}}
  %n = stablehlo.subtract %h, %all : tensor<8x5xf32>
  %g = stablehlo.dot_general %n, %h, contracting_dims = [0] x [0] : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<5x5xf32>
  return %g : tensor<5x5xf32>
}

// -----

func.func @pairs(%w: tensor<5x5xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x5xf32>) -> (tensor<5x5xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x5xf32>, tensor<5x5xf32>) -> tensor<8x5xf32>
  // expected-error@+5 {{[RHI-BATCH-004] micro-batches would have to synchronize: 'stablehlo.dot_general' reads a part of the batch and needs all of it}}
  // expected-note@+4 {{it is operand 1, stablehlo.dot_general tensor<8x5xf32>}}
  // expected-note@+3 {{work of each micro-batch waits for it: stablehlo.dot_general tensor<8x8xf32> at}}
  // expected-note@+2 {{the batch is taken to be dim 0 of argument 1}}
  // expected-note@+1 {{to fix: make examples independent of each other}}
  %all = stablehlo.dot_general %h, %h, contracting_dims = [1] x [1] : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<8x8xf32>
  %loss = stablehlo.reduce(%all init: %zero) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
  return %w, %loss : tensor<5x5xf32>, tensor<f32>
}

// -----

// expected-error@+3 {{[RHI-BATCH-002] the step has no batch}}
  // expected-note@+2 {{of 2 arguments 1 are carried from step to step, and no other has a dim}}
  // expected-note@+1 {{to fix: name the batch with --batch=}}
func.func @state(%w: tensor<5x5xf32> {tf.aliasing_output = 0 : i32}, %rate: tensor<f32>) -> tensor<5x5xf32> {
  %rates = stablehlo.broadcast_in_dim %rate, dims = [] : (tensor<f32>) -> tensor<5x5xf32>
  %new = stablehlo.multiply %w, %rates : tensor<5x5xf32>
  return %new : tensor<5x5xf32>
}

// -----

// expected-error@+2 {{[RHI-BATCH-005] nothing that the step gives depends on dim 0 of argument 1 "arg1" tensor<8x5xf32>: there is nothing to accumulate}}
  // expected-note@+1 {{to fix: name the batch with --batch, if it is another}}
func.func @unread(%w: tensor<5x5xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x5xf32>) -> tensor<5x5xf32> {
  %new = stablehlo.add %w, %w : tensor<5x5xf32>
  return %new : tensor<5x5xf32>
}

// -----

sdy.mesh @mesh = <["x"=2]>
func.func @sharded(%w: tensor<5xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x5xf32>) -> tensor<5xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-error@+2 {{[RHI-BATCH-006] 'sdy.sharding_constraint' has a sharding of the whole batch}}
  // expected-note@+1 {{to fix: divide the batch first}}
  %y = sdy.sharding_constraint %x <@mesh, [{"x"}, {}]> : tensor<8x5xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x5xf32>, tensor<f32>) -> tensor<5xf32>
  %new = stablehlo.add %w, %s : tensor<5xf32>
  return %new : tensor<5xf32>
}

// -----

// Devices send one another what their blocks read of a reversal; micro-batches cannot: the others are not there yet.
func.func @backwards(%w: tensor<5x5xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x5xf32>) -> tensor<5x5xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x5xf32>, tensor<5x5xf32>) -> tensor<8x5xf32>
  // expected-error@+5 {{[RHI-BATCH-004] micro-batches would have to synchronize: 'stablehlo.reverse' reads a part of the batch and needs all of it}}
  // expected-note@+4 {{it is operand 0, stablehlo.dot_general tensor<8x5xf32>}}
  // expected-note@+3 {{work of each micro-batch waits for it: stablehlo.dot_general tensor<5x5xf32> at}}
  // expected-note@+2 {{the batch is taken to be dim 0 of argument 1 "arg1" tensor<8x5xf32>}}
  // expected-note@+1 {{to fix: make examples independent of each other}}
  %back = stablehlo.reverse %h, dims = [0] : tensor<8x5xf32>
  %g = stablehlo.dot_general %back, %x, contracting_dims = [0] x [0] : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<5x5xf32>
  %new = stablehlo.add %w, %g : tensor<5x5xf32>
  return %new : tensor<5x5xf32>
}
