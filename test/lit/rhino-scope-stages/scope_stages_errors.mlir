// RUN: rhino-opt %s --split-input-file --verify-diagnostics --rhino-scope-stages
// A scope that comes back after a later one is refused, and so is a loop with parts in several scopes.

// expected-error@unknown {{[RHI-STAGE-003] rhino.split around 'stablehlo.dot_general' in 'f/rhino.split.1/dot_general' comes back after a later scope, whose stage lies between}}
// expected-note@unknown {{it follows from rhino.split(2)}}
// expected-note@unknown {{to fix: open a scope of its own there, which is another stage, or leave the op out of scopes}}
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("f/rhino.split.1/dot")
  %b = stablehlo.dot_general %a, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("f/rhino.split[2].2/dot")
  %c = stablehlo.dot_general %b, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("f/rhino.split.1/dot_general")
  %d = stablehlo.dot_general %c, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("f/rhino.split[2].2/dot")
  return %d : tensor<8x8xf32>
}

// -----

// expected-error@unknown {{[RHI-STAGE-003] this loop has parts in several scopes, and is in one stage as a whole}}
// expected-note@unknown {{to fix: put the loop in one scope, or unroll it}}
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<8x8xf32>
  cond {
    %less = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %a = stablehlo.dot_general %h, %h, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("f/rhino.split.1/dot")
    %b = stablehlo.dot_general %a, %h, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("f/rhino.split.2/dot")
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b : tensor<i32>, tensor<8x8xf32>
  } loc("f/while")
  return %r#1 : tensor<8x8xf32>
}
