func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@next {{anything}}
  return %x : tensor<4xf32>
}
