// RUN: %python -c "import re, sys; from rhino.ir.cluster.presets import PRESETS; open(sys.argv[1], 'w').write(re.sub('host_bytes.*', '', PRESETS['cpu4']))" %t.toml
// RUN: rhino-opt --rhino-choose-shardings --cluster=%t.toml --offload --verify-diagnostics %s
// Nothing lies in host memory where nobody knows how fast devices reach it.

// expected-error@unknown {{[RHI-OFFLOAD-001] something may lie in host memory, and how fast a host CPU, 1/4 of 2 cores reaches it is not known}}
// expected-note@unknown {{to fix: add device.host_bytes_per_s to the cluster's file (docs/cluster.md), or leave offload out}}
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
