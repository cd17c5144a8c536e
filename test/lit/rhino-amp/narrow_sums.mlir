// RUN: rhino-opt --rhino-amp="amp=bf16:sums" %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=h100x8 --amp=bf16:sums --pin='x=[{"x"}, {}]' --localize %s | filecheck %s --check-prefix=SENT
// RUN: rhino-opt --auto-shard --cluster=h100x8 --amp=bf16 --pin='x=[{"x"}, {}]' --localize %s | filecheck %s --check-prefix=F32
// Gradients of parameters are summed up over devices in bf16, and go to the update in f32.

// CHECK: func.func @main(%[[W:.*]]: tensor<4096x4096xf32>
// CHECK: %[[DW16:.*]] = stablehlo.dot_general {{.*}} -> tensor<4096x4096xbf16>
// CHECK-NEXT: %[[DW:.*]] = stablehlo.convert %[[DW16]] : (tensor<4096x4096xbf16>) -> tensor<4096x4096xf32>
// CHECK-NEXT: stablehlo.subtract %[[W]], %[[DW]] : tensor<4096x4096xf32>
// SENT: (tensor<4096x4096xbf16>) -> tensor<{{.*}}xbf16>
// SENT-NEXT: stablehlo.convert
// F32: (tensor<4096x4096xf32>) -> tensor<{{.*}}xf32>
// F32-NEXT: stablehlo.subtract
func.func @main(%w: tensor<4096x4096xf32> {tf.aliasing_output = 0 : i32} loc("w"), %x: tensor<65536x4096xf32> loc("x")) -> tensor<4096x4096xf32> {
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<65536x4096xf32>, tensor<4096x4096xf32>) -> tensor<65536x4096xf32>
  %t = stablehlo.tanh %a : tensor<65536x4096xf32>
  %dw = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<65536x4096xf32>, tensor<65536x4096xf32>) -> tensor<4096x4096xf32>
  %new = stablehlo.subtract %w, %dw : tensor<4096x4096xf32>
  return %new : tensor<4096x4096xf32>
}
