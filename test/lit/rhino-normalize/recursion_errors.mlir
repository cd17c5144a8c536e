// RUN: rhino-opt --rhino-normalize --verify-diagnostics %s
// Recursive calls cannot be inlined; the error names the chain and stands at the call that closes it.

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = call @g(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{[RHI-READ-006] calls are recursive: @main -> @f -> @g -> @f}}
  // expected-note@below {{to fix: unroll the recursion}}
  %y = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
