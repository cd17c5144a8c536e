// RUN: rhino-opt --pass-pipeline='rhino-join-replicas{replicas=2 cluster=cpu2}' --split-input-file --verify-diagnostics %s
// RUN: not --exit-code=2 rhino-opt --pass-pipeline='rhino-join-replicas{replicas=two}' --split-input-file %s 2>&1 | filecheck %s
// A value that each micro-batch makes of the last one's has no parts, nor has a sum from another start; and there have to be micro-batches, and a number.

// CHECK: RHI-REPLICA-001

func.func @main_the_other(%w: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // expected-error @+2 {{[RHI-REPLICA-002] value 1 that the loop over micro-batches carries is of all of them in their order}}
  // expected-note @+1 {{to fix: leave replicas out, or accumulate sums from zero, extremes or rows of the micro-batches}}
  %loop:2 = stablehlo.while(%i = %zero, %sum = %w) : tensor<i32>, tensor<4xf32> attributes {rhino.micro_batches = 4 : i64}
  cond {
    %four = stablehlo.constant dense<4> : tensor<i32>
    %less = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %made = stablehlo.tanh %sum : tensor<4xf32>
    stablehlo.return %next, %made : tensor<i32>, tensor<4xf32>
  }
  return %loop#1 : tensor<4xf32>
}

// -----

func.func @main(%w: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // expected-error @+2 {{[RHI-REPLICA-002] value 1 that the loop over micro-batches carries is of all of them in their order}}
  // expected-note @+1 {{to fix: leave replicas out, or accumulate sums from zero, extremes or rows of the micro-batches}}
  %loop:2 = stablehlo.while(%i = %zero, %sum = %w) : tensor<i32>, tensor<4xf32> attributes {rhino.micro_batches = 4 : i64}
  cond {
    %four = stablehlo.constant dense<4> : tensor<i32>
    %less = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %made = stablehlo.add %sum, %w : tensor<4xf32>
    stablehlo.return %next, %made : tensor<i32>, tensor<4xf32>
  }
  return %loop#1 : tensor<4xf32>
}

// -----

// expected-error @unknown {{[RHI-SPLIT-001] the program needs one loop over micro-batches; it has none}}
// expected-note @unknown {{to fix: divide it first, for example with rhino-micro-batch{num=4}}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
