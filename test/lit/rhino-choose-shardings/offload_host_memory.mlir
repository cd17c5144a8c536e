// RUN: %python -c "import re, sys; from rhino.ir.cluster.presets import PRESETS; open(sys.argv[1], 'w').write(re.sub('host_bytes = . value = [0-9]*', 'host_bytes = { value = 1048576', PRESETS['cpu4']))" %t.toml
// RUN: rhino-opt --rhino-choose-shardings --cluster=%t.toml --mesh=1 --budget=8000KiB --offload --remarks-filter=memory %s 2>&1 >/dev/null | filecheck %s
// RUN: not --exit-code=3 rhino-opt --rhino-choose-shardings --cluster=%t.toml --mesh=1 --budget=7MiB --offload %s 2>&1 >/dev/null | filecheck %s --check-prefix=REFUSED
// Host memory holds one of two moments: no more lies there, and what does not fit for that is refused.

// CHECK:   in host memory: 1 argument, 1 MiB per device

// REFUSED: [RHI-SOLVE-001] no choice of shardings is predicted to fit 7 MiB per device
// REFUSED: note: 2 MiB per device would lie in host memory, which holds 1 MiB; with less there nothing fits
// REFUSED: note: to fix: raise --budget, use more devices, or a smaller batch, or give a larger device.host_bytes in the cluster's file
func.func @main(%x: tensor<512x512xf32>, %w: tensor<512x512xf32> {tf.aliasing_output = 0 : i32}, %u: tensor<512x512xf32> {tf.aliasing_output = 1 : i32},
                %m: tensor<512x512xf32> {tf.aliasing_output = 2 : i32}, %k: tensor<512x512xf32> {tf.aliasing_output = 3 : i32})
    -> (tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>, tensor<f32>) {
  %o = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %z = stablehlo.dot_general %y, %u, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %loss = stablehlo.reduce(%z init: %o) applies stablehlo.add across dimensions = [0, 1] : (tensor<512x512xf32>, tensor<f32>) -> tensor<f32>
  %g = stablehlo.dot_general %y, %z, contracting_dims = [0] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %d = stablehlo.dot_general %z, %u, contracting_dims = [1] x [1] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %h = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %n = stablehlo.add %m, %h : tensor<512x512xf32>
  %l = stablehlo.add %k, %g : tensor<512x512xf32>
  %v = stablehlo.subtract %w, %n : tensor<512x512xf32>
  %t = stablehlo.subtract %u, %l : tensor<512x512xf32>
  return %v, %t, %n, %l, %loss : tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>, tensor<512x512xf32>, tensor<f32>
}
