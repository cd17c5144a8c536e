// RUN: rhino-opt --split-input-file --verify-diagnostics %s
// A module that does not parse or verify, or that no sharding can be chosen for, is refused at its line.

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+2 {{[RHI-READ-002] the module does not parse: use of undeclared SSA value name}}
  // expected-note@+1 {{to fix: correct the module there, or export it again}}
  return %y : tensor<4xf32>
}

// -----

// expected-error@below {{[RHI-READ-004] 'func.func' has a value of dynamic shape, tensor<?xf32>}}
// expected-note@below {{shardings are chosen for sizes that are known}}
// expected-note@below {{to fix: export the program for fixed shapes, or refine it}}
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  return %x : tensor<?xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{[RHI-READ-003]}}
  // expected-note@below {{to fix: convert the program to StableHLO first (dialects read: builtin, chlo, func, sdy, stablehlo)}}
  %y = "tosa.tanh"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %y: tensor<5xf32>) -> tensor<4xf32> {
  // expected-error@below {{[RHI-READ-002] the module does not parse: 'stablehlo.add' op requires the same shape for all operands and results}}
  // expected-note@below {{to fix: correct the module there, or export it again}}
  // expected-note@below {{see current operation}}
  %z = "stablehlo.add"(%x, %y) : (tensor<4xf32>, tensor<5xf32>) -> tensor<4xf32>
  return %z : tensor<4xf32>
}

// -----

// expected-error@below {{[RHI-READ-010] 'func.func' has a value of 18446744073709551616 bytes, tensor<4611686018427387904xf32>, expected at most 72057594037927936}}
// expected-note@below {{to fix: correct the sizes: no cluster has the memory for it}}
func.func @too_large(%x: tensor<4611686018427387904xf32>) -> tensor<4611686018427387904xf32> {
  return %x : tensor<4611686018427387904xf32>
}
