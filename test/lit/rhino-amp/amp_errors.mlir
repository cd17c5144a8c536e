// RUN: rhino-opt --pass-pipeline='rhino-amp{amp=fp8}' --verify-diagnostics %s
// RUN: not --exit-code=2 rhino-opt --auto-shard --amp=fp8 %s 2>&1 | filecheck %s
// A step is computed in bf16 or f16, in no other type.

// CHECK: [RHI-AMP-001] 'fp8' is no type for mixed precision

// expected-error@unknown {{[RHI-AMP-001] 'fp8' is no type for mixed precision}}
// expected-note@unknown {{to fix: give bf16, bf16:sums or f16}}
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
