// RUN: rhino-opt --rhino-pipeline-stages=stages=2 --split-input-file --verify-diagnostics %s
// A step needs an op that computes for each stage, and stages that ops have already must be possible: a loop inside counts as one op.

// expected-error@unknown {{[RHI-STAGE-001] 2 stages were requested, and the step has 1 ops that compute}}
// expected-note@unknown {{to fix: ask for at most 1}}
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = stablehlo.tanh %x : tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}

// -----

// expected-error@unknown {{[RHI-STAGE-001] the step computes nothing, so no stage has anything to do}}
// expected-note@unknown {{to fix: shard it alone, with --auto-shard}}
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}

// -----

func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = stablehlo.tanh %x : tensor<8x8xf32>
  // expected-error@+3 {{[RHI-STAGE-003] 'stablehlo.sine' is to be in virtual stage 3, of 0 to 2}}
  // expected-note@+2 {{2 stages were requested}}
  // expected-note@+1 {{to fix: choose one of these, or remove its rhino.virtual_stage}}
  %b = stablehlo.sine %a {rhino.virtual_stage = 3 : i64} : tensor<8x8xf32>
  return %b : tensor<8x8xf32>
}

// -----

func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = stablehlo.tanh %x {rhino.virtual_stage = 1 : i64} : tensor<8x8xf32>
  %b = stablehlo.cosine %a : tensor<8x8xf32>
  // expected-error@+4 {{[RHI-STAGE-003] 'stablehlo.tanh' is to be in virtual stage 1 and is needed by 'stablehlo.sine' in virtual stage 0}}
  // expected-note@+3 {{'stablehlo.tanh' is at}}
  // expected-note@+2 {{along the program virtual stages may only grow}}
  // expected-note@+1 {{to fix: remove the rhino.virtual_stage of one of them}}
  %c = stablehlo.sine %b {rhino.virtual_stage = 0 : i64} : tensor<8x8xf32>
  return %c : tensor<8x8xf32>
}

// -----

func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-error@+3 {{[RHI-STAGE-003] 'stablehlo.tanh' is of a micro-batch and has rhino.stage, which is for ops after the micro-batches}}
  // expected-note@+2 {{an op of a micro-batch has a virtual stage: with d stages, forward 0 to d-1, and back to 2d-2}}
  // expected-note@+1 {{to fix: name it rhino.virtual_stage, or remove it}}
  %a = stablehlo.tanh %x {rhino.stage = 1 : i64} : tensor<8x8xf32>
  return %a : tensor<8x8xf32>
}

// -----

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
