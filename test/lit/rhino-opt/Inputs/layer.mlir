func.func @main(%x: tensor<8x16xf32> loc("x"), %w: tensor<16x32xf32> loc("params['w']")) -> tensor<8x32xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  return %y : tensor<8x32xf32>
}
