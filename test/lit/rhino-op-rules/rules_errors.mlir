// RUN: not rhino-opt %s --rhino-op-rules --op-rules=%S/none.toml 2>&1 | filecheck %s --check-prefix=NOFILE
// RUN: not rhino-opt %s --rhino-op-rules --op-rules=%S/Inputs/unknown.toml 2>&1 | filecheck %s --check-prefix=KEY
// RUN: not rhino-opt %s --rhino-op-rules --op-rules=%S/Inputs/rank.toml 2>&1 | filecheck %s --check-prefix=RANK
// RUN: not rhino-opt %s --rhino-op-rules --op-rules=%S/Inputs/size.toml 2>&1 | filecheck %s --check-prefix=SIZE
// RUN: not rhino-opt %s --rhino-op-rules --op-rules=%S/Inputs/letters.toml 2>&1 | filecheck %s --check-prefix=LETTERS
// RUN: not rhino-opt %s --rhino-op-rules --op-rules=%S/Inputs/factor.toml 2>&1 | filecheck %s --check-prefix=FACTOR
// A rule that is none, or is of another op than the call, is refused with what is wrong in it.

// NOFILE: none.toml: error: [RHI-CLI-002] the file cannot be read
// KEY: unknown.toml: error: [RHI-RULE-001] [product]: unknown key 'time'; known are rule, flops, product_flops, bytes
// RANK: rules_errors.mlir:{{.*}}: error: [RHI-RULE-002] the rule for @product does not fit the call: operand 1 has 1 dims in the rule, and 2 in the op
// SIZE: error: [RHI-RULE-002] {{.*}} operand 0 dim 0 has size 8 in the op, and i=5 in the rule
// LETTERS: error: [RHI-RULE-002] {{.*}} expecting factor indices to be ordered like an iota
// FACTOR: error: [RHI-RULE-002] {{.*}} flops speaks of q, which is no factor of the rule
func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %p = stablehlo.custom_call @product(%a, %b) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %p : tensor<8x8xf32>
}
