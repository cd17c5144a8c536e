// RUN: rhino-opt --pass-pipeline='rhino-amp{amp=f16}' --verify-diagnostics %s
// RUN: not --exit-code=2 rhino-opt --auto-shard --amp=fp8 %s 2>&1 | filecheck %s
// In f16 gradients need a loss scale, for which a step has no place.

// CHECK: [RHI-AMP-001] 'fp8' is no type for mixed precision

// expected-error@unknown {{[RHI-AMP-001] f16 needs a loss scale that follows the gradients from step to step, and a step has no argument and no result to keep it in}}
// expected-note@unknown {{to fix: give bf16, which has the range of f32; or write the step in f16 with a loss scale in its state}}
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
