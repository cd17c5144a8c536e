// RUN: rhino-opt --rhino-recompute=keep=half --verify-diagnostics %s
// RUN: rhino-opt --rhino-recompute=keep=1.5 --verify-diagnostics %s
// RUN: not --exit-code=2 rhino-opt --rhino-recompute=keep=2 %s 2>&1 | filecheck %s --check-prefix=MUCH
// RUN: not --exit-code=2 rhino-opt --rhino-recompute="keep=1;0" %s 2>&1 | filecheck %s --check-prefix=STAGES
// A share is a number from 0 to 1; one for each stage needs a step that is in as many stages.

// MUCH: error: [RHI-RECOMPUTE-001] keep '2' is no share of what the backward pass reads
// MUCH-NEXT: to fix: say a number from 0 to 1
// STAGES: error: [RHI-RECOMPUTE-001] keep has 2 shares, and the step is in no stages
// expected-error@unknown {{is no share of what the backward pass reads}}
// expected-note@unknown {{say a number from 0 to 1}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
