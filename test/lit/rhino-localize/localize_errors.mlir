// RUN: rhino-opt --rhino-localize --split-input-file --verify-diagnostics %s
// What is localized needs a mesh, an entry, shardings that the mesh has, strategies that ops have, and layers that stand for themselves.

// expected-error@unknown {{[RHI-LOCAL-001] the module has no mesh}}
// expected-note@unknown {{to fix: annotate it first, for example with rhino-opt --auto-shard}}
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// expected-error@unknown {{[RHI-READ-005]}}
// expected-note@unknown {{to fix: name the entry}}
sdy.mesh @mesh = <["x"=4]>
func.func private @helper() {
  return
}

// -----

sdy.mesh @mesh = <["x"=4]>
// expected-error@+3 {{[RHI-SHARD-001] the sharding of argument 0 "arg0" cannot be honoured: dim 0 has size 6}}
// expected-note@+2 {{the sharding is}}
// expected-note@+1 {{to fix: choose dims that whole axes divide}}
func.func @main(%x: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<6xf32> {
  return %x : tensor<6xf32>
}

// -----

sdy.mesh @mesh = <["x"=4]>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+3 {{[RHI-LOCAL-001] 'stablehlo.tanh' cannot run between the shardings of its operands and results}}
  // expected-note@+2 {{its strategy is "q"}}
  // expected-note@+1 {{to fix: shard the module again, with rhino-opt --auto-shard}}
  %y = stablehlo.tanh %x {rhino.strategy = "q"} : tensor<8xf32>
  return %y : tensor<8xf32>
}

// -----

// expected-error@unknown {{[RHI-LOCAL-001] the module's layers stand for several each}}
// expected-note@unknown {{to fix: leave rhino-fold-layers out}}
module attributes {rhino.folded} {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}
