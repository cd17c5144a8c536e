// RUN: rhino-opt --rhino-split-stages --split-input-file --verify-diagnostics %s
// Programs that are no accumulation program, or not marked with stages that can be.

// expected-error@unknown {{[RHI-SPLIT-001] the program needs one loop over micro-batches; it has none}}
// expected-note@unknown {{to fix: divide it first, for example with rhino-micro-batch{num=4}}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  // expected-error@+2 {{[RHI-SPLIT-001] the loop says that it runs for 2 micro-batches, and it is not seen to run so often}}
  // expected-note@+1 {{to fix: count from 0 by 1 up to that number}}
  %end:2 = stablehlo.while(%i = %zero, %sum = %x) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 2 : i64} cond {
    %more = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %y = stablehlo.tanh %sum {rhino.virtual_stage = 0 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %sum = %x) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 1 : i64} cond {
    %more = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-error@+2 {{[RHI-SPLIT-002] 'stablehlo.tanh' has no virtual stage}}
    // expected-note@+1 {{to fix: assign stages first, for example with rhino-pipeline-stages{stages=2}}}
    %y = stablehlo.tanh %sum : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}

// -----

module attributes {rhino.num_stages = 2 : i64} {
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %sum = %x) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 1 : i64} cond {
    %more = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-error@+2 {{[RHI-SPLIT-002] 'stablehlo.tanh' is of virtual stage 3, of 0 to 2}}
    // expected-note@+1 {{to fix: assign stages anew}}
    %y = stablehlo.tanh %sum {rhino.virtual_stage = 3 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}
}

// -----

module attributes {rhino.num_stages = 2 : i64} {
// The accumulator would be read in the first stage and made in the second.
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  // expected-error@+2 {{[RHI-SPLIT-002] 'stablehlo.while' accumulates value 1 in one stage and reads it in another}}
  // expected-note@+1 {{to fix: assign stages anew}}
  %end:2 = stablehlo.while(%i = %zero, %sum = %x) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 1 : i64} cond {
    %more = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %y = stablehlo.tanh %sum {rhino.virtual_stage = 0 : i64} : tensor<4xf32>
    %z = stablehlo.abs %y {rhino.virtual_stage = 1 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %z : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}
}

// -----

module attributes {rhino.num_stages = 2 : i64} {
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %sum = %x) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 1 : i64} cond {
    %more = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %y = stablehlo.tanh %x {rhino.virtual_stage = 2 : i64} : tensor<4xf32>
    // expected-error@+2 {{[RHI-SPLIT-002] 'stablehlo.add' of virtual stage 1 reads what virtual stage 2 makes}}
    // expected-note@+1 {{to fix: let stages only grow along the program}}
    %z = stablehlo.add %sum, %y {rhino.virtual_stage = 1 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %z : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %sum = %x) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 1 : i64} cond {
    %more = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    // expected-error@+3 {{[RHI-STAGE-003] 'stablehlo.tanh' is of a micro-batch and has rhino.stage, which is for ops after the micro-batches}}
    // expected-note@+2 {{an op of a micro-batch has a virtual stage: with d stages, forward 0 to d-1, and back to 2d-2}}
    // expected-note@+1 {{to fix: name it rhino.virtual_stage, or remove it}}
    %y = stablehlo.tanh %sum {rhino.stage = 0 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %sum = %x) : tensor<i32>, tensor<4xf32>
    attributes {rhino.micro_batches = 1 : i64} cond {
    %more = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %y = stablehlo.tanh %sum {rhino.virtual_stage = 0 : i64} : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<4xf32>
  }
  // expected-error@+3 {{[RHI-STAGE-003] 'stablehlo.sine' runs after the micro-batches and has rhino.virtual_stage, which is for ops of a micro-batch}}
  // expected-note@+2 {{an op after the micro-batches has a stage of the pipeline: with d stages, 0 to d-1}}
  // expected-note@+1 {{to fix: name it rhino.stage, with such a number, or remove it}}
  %z = stablehlo.sine %end#1 {rhino.virtual_stage = 0 : i64} : tensor<4xf32>
  return %z : tensor<4xf32>
}

// -----

// expected-error@unknown {{[RHI-LOCAL-001] the module's layers stand for several each}}
// expected-note@unknown {{to fix: leave rhino-fold-layers out}}
module attributes {rhino.folded} {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}
