func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %undeclared : tensor<4xf32>
}
