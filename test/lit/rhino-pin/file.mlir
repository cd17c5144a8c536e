// RUN: rhino-opt %s --rhino-pin --cluster=v100x8 --mesh=2x4 --constraints=%S/Inputs/constraints.toml | filecheck %s
// RUN: rhino-opt %s --auto-shard --cluster=v100x8 --mesh=2x4 --constraints=%S/Inputs/constraints.toml | filecheck %s --check-prefix=CHOSEN
// A file says what options say; and what is chosen keeps it.

// CHECK: module attributes {rhino.axis_roles = {y = "model"}}
// CHECK-LABEL: func.func @main(
// CHECK-SAME: sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>
// CHECK-SAME: sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}], replicated={"x"}>
// CHECK-SAME: -> (tensor<64x64xf32>, tensor<64x64xf32> {rhino.forbidden = [#sdy.sharding<@mesh, [{"x"}, {}]>]

// CHOSEN-LABEL: func.func @main(
// CHOSEN-SAME: %[[UP:.*]]: tensor<64x64xf32> {rhino.provenance = ["pin 1 of {{.*}}constraints.toml, 'params.*.up=[{}, {\22y\22}]'"], sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>, tf.aliasing_output = 0 : i32}
func.func @main(
    %up: tensor<64x64xf32> {tf.aliasing_output = 0 : i32} loc("state.params['layers'][0]['up']"),
    %down: tensor<64x64xf32> {tf.aliasing_output = 1 : i32} loc("state.params['layers'][0]['down']"),
    %x: tensor<32x64xf32> loc("batch")) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %h = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %g = stablehlo.dot_general %x, %h, contracting_dims = [0] x [0] : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  %n = stablehlo.add %up, %g : tensor<64x64xf32>
  %m = stablehlo.add %down, %g : tensor<64x64xf32>
  return %n, %m : tensor<64x64xf32>, tensor<64x64xf32>
}
