// RUN: rhino-opt %s --rhino-pin --cluster=v100x8 --mesh=2x4 --pin='up=[{}, {"y"}]' --pin='arg2=[{x, ?}, {?}]' --forbid=down=x \
// RUN:   --forbid='arg2=[{x,y}, {}]' --pin='result:path.loss=[{}, {}]' | filecheck %s
// RUN: rhino-opt %s --pass-pipeline='rhino-pin{cluster=v100x8 mesh=2x4 forbid="down=x; arg2=[{x,y}, {}]" pin="up=[{}, {\"y\"}]; arg2=[{x, ?}, {?}]; result:path.loss=[{}, {}]"}' \
// RUN:   | filecheck %s
// Pins become shardings; the ban of an axis is a sharding too, replicated along it, and the ban of a sharding an attribute of ours. Names
// are pytree paths, of which leading parts may be left out; what has none goes by its number.

// CHECK: sdy.mesh @mesh = <["x"=2, "y"=4]>
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[UP:.*]]: tensor<64x64xf32> {rhino.provenance = ["pin 'up=[{}, {\22y\22}]'"], sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}
// CHECK-SAME: %[[DOWN:.*]]: tensor<64x64xf32> {rhino.provenance = ["forbid 'down=x'"], sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}], replicated={"x"}>}
// CHECK-SAME: %[[X:.*]]: tensor<64x64xf32> {rhino.forbidden = [#sdy.sharding<@mesh, [{"x", "y"}, {}]>]
// CHECK-SAME: sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>})
// CHECK-SAME: -> (tensor<64x64xf32> {jax.result_info = "path['loss']", rhino.provenance = ["pin 'result:path.loss=[{}, {}]'"], sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
func.func @main(
    %up: tensor<64x64xf32> loc("state.params['layers'][0]['up']"), %down: tensor<64x64xf32> loc("state.params['layers'][0]['down']"),
    %x: tensor<64x64xf32>) -> (tensor<64x64xf32> {jax.result_info = "path['loss']"}) {
  %h = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %y = stablehlo.dot_general %h, %down, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %y : tensor<64x64xf32>
}
