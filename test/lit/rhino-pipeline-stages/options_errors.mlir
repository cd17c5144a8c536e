// RUN: not rhino-opt --rhino-pipeline-stages=stages=0 %s 2>&1 | filecheck %s --check-prefix=NUMBER
// RUN: not --exit-code=2 rhino-opt --rhino-pipeline-stages=tolerance=-0.1 %s 2>&1 | filecheck %s --check-prefix=TOLERANCE
// RUN: not --exit-code=2 rhino-opt --rhino-pipeline-stages=tolerance=ten %s 2>&1 | filecheck %s --check-prefix=WORD
// RUN: not --exit-code=2 rhino-opt --rhino-pipeline-stages=schedule=fastest %s 2>&1 | filecheck %s --check-prefix=SCHEDULE
// RUN: not --exit-code=3 rhino-opt --rhino-pipeline-stages=budget=300B %s 2>&1 | filecheck %s --check-prefix=BUDGET
// RUN: rhino-opt --rhino-pipeline-stages="stages=1 budget=300B" %s | filecheck %s --check-prefix=ONE
// RUN: not rhino-opt --rhino-pipeline-stages="budget=1KiB stage-rows=1KiB;1KiB;1KiB" %s 2>&1 | filecheck %s --check-prefix=ROWS
// RUN: not --exit-code=2 rhino-opt --rhino-pipeline-stages=budget=much %s 2>&1 | filecheck %s --check-prefix=SIZE
// RUN: not rhino-opt --rhino-pipeline-stages=cluster=none %s 2>&1 | filecheck %s --check-prefix=CLUSTER
// RUN: rhino-opt --rhino-pipeline-stages=budget=600B %s | filecheck %s
// Options that cannot be are refused; and where no cut fits the budget, what it needs without one and the largest parameters are named.
// One stage is no cut, so that no budget rules it out here.

// NUMBER: error: [RHI-STAGE-001] 0 stages were requested
// SCHEDULE: error: [RHI-SCHED-001] got schedule 'fastest', expected one of
// TOLERANCE: error: [RHI-STAGE-002] tolerance '-0.1' is no number from 0 to 10
// WORD: error: [RHI-STAGE-002] tolerance 'ten' is no number from 0 to 10
// BUDGET: error: [RHI-STAGE-004] no cut in 2 stages is predicted to fit 300 B per device
// BUDGET-NEXT: note: without it, the stages need {{.*}} B, {{.*}} B
// BUDGET-NEXT: note: the largest: argument 2 "v" tensor<8x16xf32> of 512 B, argument 1 "u" tensor<8x8xf32> of 256 B
// BUDGET-NEXT: note: to fix: allow more bytes
// ONE-COUNT-2: stablehlo.dot_general {{.*}}rhino.virtual_stage = 0 : i64
// ROWS: error: [RHI-STAGE-001] stage-rows has 3 values, and 2 stages were requested
// SIZE: error: [RHI-CLI-001] size: got 'much'
// CLUSTER: error: [RHI-CLUSTER-001] got cluster 'none'
// CHECK: stablehlo.dot_general {{.*}}rhino.virtual_stage = 0 : i64
// CHECK: stablehlo.dot_general {{.*}}rhino.virtual_stage = 1 : i64
func.func @main(%x: tensor<2x8xf32> loc("x"), %u: tensor<8x8xf32> loc("u"), %v: tensor<8x16xf32> loc("v")) -> tensor<2x16xf32> {
  %h = stablehlo.dot_general %x, %u, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
  %o = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x16xf32>) -> tensor<2x16xf32>
  return %o : tensor<2x16xf32>
}
