// RUN: rhino-opt --rhino-choose-shardings --cluster=cpu4 --budget=64KiB --verify-diagnostics %s
// A budget that cannot be met is an error that names the tensors at fault, the largest first, with the least that each can take.

// expected-error@unknown {{[RHI-SOLVE-001] no choice of shardings is predicted to fit 64 KiB per device; the smallest plan that was found needs 134 KiB}}
// expected-note@unknown {{at least 64 KiB: argument 0 "arg0" tensor<256x256xf32>}}
// expected-note@unknown {{at least 68 KiB: stablehlo.tanh tensor<256x256xf32>}}
// expected-note@unknown {{the least sizes of all tensors alive add up to 132 KiB}}
// expected-note@unknown {{to fix: raise --budget, use more devices, or a smaller batch}}
func.func @main(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %y = stablehlo.tanh %x : tensor<256x256xf32>
  return %y : tensor<256x256xf32>
}
