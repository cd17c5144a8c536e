// RUN: rhino-opt %s --rhino-op-rules | filecheck %s
// RUN: rhino-opt %s --auto-shard --cluster=h100x8 --mesh=2x4 --localize | filecheck %s --check-prefix=LOCAL
// Attention of cuDNN shows that it splits by the batch and by heads that share no keys; each device calls it for the scores of its own part.
// Nobody reads its workspace, which each device has for itself.

// CHECK: rhino.cost = {bytes = 84410384 : i64, flops = 278099132416 : i64, product_dtype = "bf16", product_flops = 274877906944 : i64}
// CHECK-SAME: <([i, j, kl, m], [i, n, k, m], [i, n, k, o])->([i, kl, j, o], [i, kl, j], [p]) {i=2, j=4096, k=4, l=4, m=128, n=4096, o=128, p=16} need_replication={j, l, m, n, o, p}, custom>
// LOCAL: @__cudnn$fmhaSoftmax(%{{[^{]*}}
// LOCAL-SAME: [\221\22, \224\22, \224096\22, \224096\22]
func.func @main(%q: tensor<2x4096x16x128xbf16> loc("q"), %k: tensor<2x4096x4x128xbf16> loc("k"), %v: tensor<2x4096x4x128xbf16> loc("v")) -> (tensor<2x16x4096x128xbf16>, tensor<2x16x4096xf32>) {
  %o:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {
    api_version = 2 : i32,
    backend_config = "{\22cudnn_fmha_backend_config\22: {\22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\222\22, \2216\22, \224096\22, \224096\22]}, \22mask_type\22: \22NO_MASK\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_contracting_dimensions\22: [\223\22], \22rhs_contracting_dimensions\22: [\223\22], \22lhs_batch_dimensions\22: [\220\22, \222\22], \22rhs_batch_dimensions\22: [\220\22, \222\22]}, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}",
    operand_layouts = [dense<[3, 2, 1, 0]> : tensor<4xindex>, dense<[3, 2, 1, 0]> : tensor<4xindex>, dense<[3, 2, 1, 0]> : tensor<4xindex>],
    result_layouts = [dense<[3, 1, 2, 0]> : tensor<4xindex>, dense<[2, 1, 0]> : tensor<3xindex>, dense<0> : tensor<1xindex>]
  } : (tensor<2x4096x16x128xbf16>, tensor<2x4096x4x128xbf16>, tensor<2x4096x4x128xbf16>) -> (tensor<2x16x4096x128xbf16>, tensor<2x16x4096xf32>, tensor<16xui8>)
  return %o#0, %o#1 : tensor<2x16x4096x128xbf16>, tensor<2x16x4096xf32>
}
