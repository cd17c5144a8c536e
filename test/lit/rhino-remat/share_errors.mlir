// RUN: rhino-opt --rhino-remat=remat=half --verify-diagnostics %s
// RUN: rhino-opt --rhino-remat=remat=1.5 --verify-diagnostics %s
// RUN: not --exit-code=2 rhino-opt --rhino-remat=remat=2 %s 2>&1 | filecheck %s --check-prefix=MUCH
// RUN: not --exit-code=2 rhino-opt --rhino-remat="remat=0;1" %s 2>&1 | filecheck %s --check-prefix=STAGES
// RUN: not --exit-code=2 rhino-opt --rhino-remat="remat=auto" %s 2>&1 | filecheck %s --check-prefix=AUTO
// A share is a number from 0 to 1; one for each stage needs a step that is in as many stages, and auto one whose cut says what they are.

// MUCH: error: [RHI-REMAT-001] remat '2' is not between 0 and 1
// MUCH-NEXT: to fix: give a number from 0 to 1
// AUTO: error: [RHI-REMAT-001] remat is auto, and no stages have been cut that say what they recompute
// STAGES: error: [RHI-REMAT-001] remat has 2 values, and the step has no stages
// expected-error@unknown {{is not between 0 and 1}}
// expected-note@unknown {{give a number from 0 to 1}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
