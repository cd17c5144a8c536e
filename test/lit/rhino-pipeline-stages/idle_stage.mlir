// RUN: rhino-opt --rhino-pipeline-stages="stages=2 tolerance=2" --verify-diagnostics --remarks-filter=pipeline-stages %s
// Within a wide tolerance nothing moves least: the stage that is left without work is said.

// expected-remark@unknown {{0 B move between stages per step in 0 transfers}}
// expected-remark@unknown {{stage 0: }}
// expected-remark@unknown {{stage 1: }}
// expected-remark@unknown {{between stages 0 and 1: 0 B per step}}
// expected-remark@unknown {{has no work: within the tolerance this cut transfers least. Ask for fewer stages, or for a smaller tolerance}}
func.func @main(%x: tensor<32x32xf32>, %u: tensor<32x32xf32>, %v: tensor<32x32xf32>) -> tensor<32x32xf32> {
  %h = stablehlo.dot_general %x, %u, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %o = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  return %o : tensor<32x32xf32>
}
