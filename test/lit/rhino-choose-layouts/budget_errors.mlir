// RUN: rhino-opt --auto-shard --micro-batches=1 --cluster=cpu4 --budget=4KiB --verify-diagnostics %s
// A budget that a step meets in neither form is the error of the step as it is written.

// expected-error@unknown {{[RHI-SOLVE-001] no choice of shardings is predicted to fit 4 KiB per device}}
// expected-note@unknown {{at least 12.8 KiB: stablehlo.dot_general tensor<64x192xf32>}}
// expected-note@unknown {{at least 12 KiB: argument 1 "arg1" tensor<64x192xf32>}}
// expected-note@unknown {{at least 4.25 KiB: stablehlo.add tensor<64x64xf32>}}
// expected-note@unknown {{at least 4 KiB: argument 0 "arg0" tensor<64x64xf32>}}
// expected-note@unknown {{the least sizes of all tensors alive add up to 33 KiB}}
// expected-note@unknown {{to fix: raise --budget, use more devices, or a smaller batch}}
func.func @main(%x: tensor<64x64xf32>, %w: tensor<64x192xf32>) -> tensor<64x64xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x192xf32>) -> tensor<64x192xf32>
  %a = stablehlo.slice %y [0:64, 0:64] : (tensor<64x192xf32>) -> tensor<64x64xf32>
  %b = stablehlo.slice %y [0:64, 64:128] : (tensor<64x192xf32>) -> tensor<64x64xf32>
  %c = stablehlo.slice %y [0:64, 128:192] : (tensor<64x192xf32>) -> tensor<64x64xf32>
  %ab = stablehlo.multiply %a, %b : tensor<64x64xf32>
  %abc = stablehlo.add %ab, %c : tensor<64x64xf32>
  return %abc : tensor<64x64xf32>
}
