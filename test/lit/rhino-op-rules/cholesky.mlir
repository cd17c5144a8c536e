// RUN: rhino-opt %s --auto-shard --cluster=cpu4 --mesh=4 --op-rules=%S/Inputs/cholesky.toml -o %t
// RUN: rhino-opt %t --localize | filecheck %s
// RUN: rhino-run %t --compare %s | filecheck %s --check-prefix=RUN-IT
// A batch of factorizations is split by the batch, and each device's library call sees its own part of it.

// CHECK: stablehlo.custom_call @lapack_spotrf_ffi({{.*}} : (tensor<4x16x16xf32>) -> (tensor<4x16x16xf32>, tensor<4xi32>)
// RUN-IT: the results agree with the one-device program
func.func @main(%x: tensor<16x16x4096xf32> loc("x")) -> tensor<16x16x16xf32> {
  %xx = stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<16x16x4096xf32>, tensor<16x16x4096xf32>) -> tensor<16x16x16xf32>
  %f:2 = stablehlo.custom_call @lapack_spotrf_ffi(%xx) {
    backend_config = {uplo = 76 : ui8}, api_version = 4 : i32,
    operand_layouts = [dense<[1, 2, 0]> : tensor<3xindex>], result_layouts = [dense<[1, 2, 0]> : tensor<3xindex>, dense<0> : tensor<1xindex>],
    output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>]
  } : (tensor<16x16x16xf32>) -> (tensor<16x16x16xf32>, tensor<16xi32>)
  %zero = stablehlo.constant dense<0.0> : tensor<16x16x16xf32>
  %i = stablehlo.iota dim = 1 : tensor<16x16x16xi32>
  %j = stablehlo.iota dim = 2 : tensor<16x16x16xi32>
  %lower = stablehlo.compare GE, %i, %j : (tensor<16x16x16xi32>, tensor<16x16x16xi32>) -> tensor<16x16x16xi1>
  %l = stablehlo.select %lower, %f#0, %zero : tensor<16x16x16xi1>, tensor<16x16x16xf32>
  return %l : tensor<16x16x16xf32>
}
