// RUN: rhino-opt %s --rhino-op-rules --op-rules=%S/Inputs/rules.toml | filecheck %s
// A custom call gets the rule of its target, with the sizes that its shapes say, and what it costs; a rule of the input is marked as its
// owner's, so that it is kept and believed.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.custom_call @product(%{{.*}}) {rhino.cost = {bytes = 16384 : i64, flops = 131072 : i64}, sdy.sharding_rule = #sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=32, j=32, k=64} reduction={k}, custom>}
// CHECK-NEXT: stablehlo.custom_call @"blocks of rows"(%{{.*}}) {sdy.sharding_rule = #sdy.op_sharding_rule<([ij, k])->([i, j, k]) {i=8, j=4, k=32} need_replication={k}, custom>}
// CHECK-NEXT: stablehlo.custom_call @own(%{{.*}}) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=32, j=32} need_replication={j}, custom>}
// CHECK-NEXT: stablehlo.custom_call @unknown(%{{[^{]*}} : (tensor<32x32xf32>)
func.func @main(%a: tensor<32x64xf32>, %b: tensor<64x32xf32>) -> (tensor<8x4x32xf32>, tensor<32x32xf32>) {
  %p = stablehlo.custom_call @product(%a, %b) : (tensor<32x64xf32>, tensor<64x32xf32>) -> tensor<32x32xf32>
  %q = stablehlo.custom_call @"blocks of rows"(%p) : (tensor<32x32xf32>) -> tensor<8x4x32xf32>
  %r = stablehlo.custom_call @own(%p) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=32, j=32} need_replication={j}>} : (tensor<32x32xf32>) -> tensor<32x32xf32>
  %s = stablehlo.custom_call @unknown(%r) : (tensor<32x32xf32>) -> tensor<32x32xf32>
  return %q, %s : tensor<8x4x32xf32>, tensor<32x32xf32>
}
