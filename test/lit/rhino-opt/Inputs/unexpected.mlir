func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{no such thing}}
  %y = stablehlo.tanh %x : tensor<4xf32>
  // expected-remark@+1 {{nor such a remark}}
  return %y : tensor<4xf32>
}
