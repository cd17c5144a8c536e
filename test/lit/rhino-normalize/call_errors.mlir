// RUN: rhino-opt --rhino-normalize --verify-diagnostics %s
// A function that is called and has no body cannot be inlined; the error stands at the call.

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{[RHI-READ-008] @missing is called, and has no body}}
  // expected-note@below {{to fix: link the module with the one that defines it}}
  %y = call @missing(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @missing(tensor<4xf32>) -> tensor<4xf32>
