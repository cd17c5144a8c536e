// RUN: rhino-opt --rhino-remat=remat=1 --verify-diagnostics %s
// An op of a micro-batch has a virtual stage; a stage of the pipeline there is refused.

func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // expected-error@+3 {{[RHI-STAGE-003] 'stablehlo.tanh' is of a micro-batch and has rhino.stage, which is for ops after the micro-batches}}
  // expected-note@+2 {{an op of a micro-batch has a virtual stage}}
  // expected-note@+1 {{to fix: name it rhino.virtual_stage, or remove it}}
  %a = stablehlo.tanh %x {rhino.stage = 1 : i64} : tensor<8x8xf32>
  return %a : tensor<8x8xf32>
}
