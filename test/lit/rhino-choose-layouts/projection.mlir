// RUN: rhino-opt --auto-shard --cluster=cpu8 --remarks-filter=choose-layouts --split-input-file %s 2>&1 | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=v100x8 --remarks-filter=choose-layouts --split-input-file %s 2>&1 | filecheck %s --check-prefix=WHOLE
// A projection whose result is cut in three is stored as blocks where the step is faster so: not where devices are so fast that each
// has the weight whole. A dim that the user splits stays.

// CHECK: remark: [rhino-choose-layouts] the step takes 223 ms with blocks; as it is it takes 224 ms
// CHECK: rhino-opt: step 223 ms, {{.*}}; mesh x=8; blocks in 1 argument (224 ms without)
// CHECK-NOT: remark: [rhino-choose-layouts]
// CHECK-LABEL: func.func @main(
// CHECK-SAME: tensor<2048x3x2048xf32> {rhino.view = array<i64: 2048, 6144>, sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"x"}]>}

// WHOLE: remark: [rhino-choose-layouts] the step takes 382 us as it is; with dims stored as blocks it takes at least 382 us
// WHOLE-LABEL: func.func @main(
// WHOLE-SAME: tensor<2048x6144xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
sdy.mesh @mesh = <["x"=8]>
func.func @main(
    %x: tensor<1024x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
    %w: tensor<2048x6144xf32>,
    %o: tensor<2048x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<1024x2048xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<1024x2048xf32>, tensor<2048x6144xf32>) -> tensor<1024x6144xf32>
  %a = stablehlo.slice %y [0:1024, 0:2048] : (tensor<1024x6144xf32>) -> tensor<1024x2048xf32>
  %b = stablehlo.slice %y [0:1024, 2048:4096] : (tensor<1024x6144xf32>) -> tensor<1024x2048xf32>
  %c = stablehlo.slice %y [0:1024, 4096:6144] : (tensor<1024x6144xf32>) -> tensor<1024x2048xf32>
  %ab = stablehlo.multiply %a, %b : tensor<1024x2048xf32>
  %abc = stablehlo.add %ab, %c : tensor<1024x2048xf32>
  %z = stablehlo.dot_general %abc, %o, contracting_dims = [1] x [0] : (tensor<1024x2048xf32>, tensor<2048x2048xf32>) -> tensor<1024x2048xf32>
  return %z : tensor<1024x2048xf32>
}

// -----

// CHECK-LABEL: func.func @main(
// CHECK-SAME: tensor<2048x6144xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}
sdy.mesh @mesh = <["x"=8]>
func.func @main(
    %x: tensor<1024x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
    %w: tensor<2048x6144xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %o: tensor<2048x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<1024x2048xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<1024x2048xf32>, tensor<2048x6144xf32>) -> tensor<1024x6144xf32>
  %a = stablehlo.slice %y [0:1024, 0:2048] : (tensor<1024x6144xf32>) -> tensor<1024x2048xf32>
  %b = stablehlo.slice %y [0:1024, 2048:4096] : (tensor<1024x6144xf32>) -> tensor<1024x2048xf32>
  %c = stablehlo.slice %y [0:1024, 4096:6144] : (tensor<1024x6144xf32>) -> tensor<1024x2048xf32>
  %ab = stablehlo.multiply %a, %b : tensor<1024x2048xf32>
  %abc = stablehlo.add %ab, %c : tensor<1024x2048xf32>
  %z = stablehlo.dot_general %abc, %o, contracting_dims = [1] x [0] : (tensor<1024x2048xf32>, tensor<2048x2048xf32>) -> tensor<1024x2048xf32>
  return %z : tensor<1024x2048xf32>
}
