// RUN: rhino-opt --pass-pipeline='rhino-attention{attention=blockwise:0}' --verify-diagnostics %s
// RUN: not --exit-code=2 rhino-opt --auto-shard --attention=ring %s 2>&1 | filecheck %s
// Attention is computed in blocks of keys, in no other way.

// CHECK: [RHI-ATTN-001] 'ring' is no way to compute attention

// expected-error@unknown {{[RHI-ATTN-001] 'blockwise:0' is no way to compute attention}}
// expected-note@unknown {{to fix: give blockwise, or blockwise:256 for small blocks}}
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
