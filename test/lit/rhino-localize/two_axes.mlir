// RUN: rhino-opt --rhino-localize --split-input-file %s | filecheck %s
// On two axes a strategy says for each what the op does there; each collective goes along the axes that it names, between neighbours for
// the inner one, across for the outer one.

// Rows along `x`; along `y` the whole product on every device, which cuts its columns out afterwards.
// CHECK-LABEL: func.func @rows_and_whole(
// CHECK-SAME: %[[A:.*]]: tensor<4x16xf32> {{.*}}, %[[B:.*]]: tensor<16x8xf32>
// CHECK-NEXT: %[[P:.*]] = stablehlo.dot_general %[[A]], %[[B]], {{.*}} -> tensor<4x8xf32>
// CHECK: %[[CUT:.*]] = stablehlo.dynamic_slice %[[P]], {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: return %[[CUT]]
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @rows_and_whole(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                          %b: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
  %p = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      {rhino.strategy = "i, replicate", sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>} : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  return %p : tensor<8x8xf32>
}

// -----

// A sum along both axes is taken in one collective of all four devices.
// CHECK-LABEL: func.func @sum_over_both(
// CHECK: %[[P:.*]] = stablehlo.dot_general {{.*}} : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
// CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[P]]) <{{{.*}}replica_groups = dense<{{\[\[}}0, 1, 2, 3]]>
// CHECK: return %[[SUM]]
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @sum_over_both(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}]>},
                         %b: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %p = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      {rhino.strategy = "k, k", sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  return %p : tensor<8x8xf32>
}

// -----

// A sum over two summed dims, the first split along the inner axis and the second along the outer.
// CHECK-LABEL: func.func @two_summed_dims(
// CHECK: %[[P:.*]] = stablehlo.dot_general {{.*}} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<f32>
// CHECK-NEXT: "stablehlo.all_reduce"(%[[P]]) <{{{.*}}replica_groups = dense<{{\[\[}}0, 1, 2, 3]]>
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @two_summed_dims(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>},
                           %b: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>})
    -> (tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}) {
  %p = stablehlo.dot_general %a, %b, contracting_dims = [0, 1] x [0, 1]
      {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>]>} : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<f32>
  return %p : tensor<f32>
}

// -----

// A maximum along `x`, by rows along `y`.
// CHECK-LABEL: func.func @maximum(
// CHECK: %[[M:.*]] = stablehlo.reduce(%{{.*}}) applies stablehlo.maximum
// CHECK-NEXT: %[[ALL:.*]] = "stablehlo.all_reduce"(%[[M]]) <{{{.*}}replica_groups = dense<{{\[\[}}0, 2], [1, 3]]>
// CHECK: stablehlo.maximum
// CHECK: return %[[ALL]]
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @maximum(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>})
    -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>}) {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%a init: %least) applies stablehlo.maximum across dimensions = [1]
      {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}]>]>} : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  return %m : tensor<8xf32>
}
