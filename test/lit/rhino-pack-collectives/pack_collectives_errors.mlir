// RUN: rhino-opt --pass-pipeline="builtin.module(rhino-pack-collectives{item-bytes=64})" --verify-diagnostics %s
// The module needs an entry, whose collectives are counted.

// expected-error@unknown {{[RHI-READ-005]}}
// expected-note@unknown {{to fix: name the entry}}
func.func private @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
