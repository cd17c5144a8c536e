// RUN: rhino-opt --auto-shard --cluster=h100x8 --amp=bf16 --pin='w=[{"x"}, {}]' --localize %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=h100x8 --pin='w=[{"x"}, {}]' --localize %s | filecheck %s --check-prefix=F32
// A parameter that is stored in parts is converted before it is gathered, so half as many bytes are sent.

// CHECK: %[[PART:.*]] = stablehlo.convert %{{.*}} : (tensor<512x4096xf32>) -> tensor<512x4096xbf16>
// CHECK: "stablehlo.all_gather"(%[[PART]]){{.*}} : (tensor<512x4096xbf16>) -> tensor<4096x4096xbf16>
// F32: "stablehlo.all_gather"({{.*}} : (tensor<512x4096xf32>) -> tensor<4096x4096xf32>
func.func @main(%w: tensor<4096x4096xf32> loc("w"), %x: tensor<65536x4096xf32> loc("x")) -> tensor<65536x4096xf32> {
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<65536x4096xf32>, tensor<4096x4096xf32>) -> tensor<65536x4096xf32>
  %b = stablehlo.tanh %a : tensor<65536x4096xf32>
  %c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [1] : (tensor<65536x4096xf32>, tensor<4096x4096xf32>) -> tensor<65536x4096xf32>
  return %c : tensor<65536x4096xf32>
}
