// RUN: rhino-opt --rhino-split-scans="counts=2;3 leaves=true" --split-input-file %s | filecheck %s
// RUN: rhino-opt --rhino-split-scans="counts=2;3 leaves=true" --split-input-file --remarks-filter=. -o - %s 2>&1 | filecheck %s --check-prefix=REMARK
// What stays whole is said with its reason: stacks whose rows are split over devices, results that replace no argument in pieces, and loops
// of models that say themselves where stages end.

// REMARK: a loop over 5 layers is cut in pieces of 2, 3
// REMARK: arg1 stays whole: its sharding splits rows over devices
// REMARK: result[1] is put together on one rank: it takes the place of no argument that lies in pieces
// CHECK-LABEL: func.func @main
// CHECK-SAME: %arg1: tensor<5x4xf32>
// CHECK-COUNT-2: stablehlo.while
sdy.mesh @mesh = <["x"=5]>
func.func @main(%x: tensor<4xf32>, %w: tensor<5x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4xf32>, tensor<5x4xf32> {jax.result_info = "result[1]"}) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c5 = stablehlo.constant dense<5> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<5x4xf32>
  %r:4 = stablehlo.while(%i = %c0, %h = %x, %ws = %w, %ys = %zeros) : tensor<i32>, tensor<4xf32>, tensor<5x4xf32>, tensor<5x4xf32>
  cond {
    %t = stablehlo.compare LT, %i, %c5 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %t : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %ws, %i, %c0, sizes = [1, 4] : (tensor<5x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %p = stablehlo.reshape %row : (tensor<1x4xf32>) -> tensor<4xf32>
    %m = stablehlo.multiply %h, %p : tensor<4xf32>
    %y = stablehlo.reshape %m : (tensor<4xf32>) -> tensor<1x4xf32>
    %u = stablehlo.dynamic_update_slice %ys, %y, %i, %c0 : (tensor<5x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<5x4xf32>
    %n = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %n, %m, %ws, %u : tensor<i32>, tensor<4xf32>, tensor<5x4xf32>, tensor<5x4xf32>
  }
  return %r#1, %r#3 : tensor<4xf32>, tensor<5x4xf32>
}

// -----

// REMARK: loops over layers stay whole: the model has stage boundaries, which say where it is cut
// CHECK-LABEL: func.func @main
// CHECK-COUNT-1: stablehlo.while
// CHECK-NOT: stablehlo.while
func.func @main(%x: tensor<4xf32>, %w: tensor<5x4xf32>) -> (tensor<4xf32>, tensor<5x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c5 = stablehlo.constant dense<5> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<5x4xf32>
  %cut = stablehlo.optimization_barrier {rhino.stage_boundary = "forward"} %x : tensor<4xf32>
  %r:4 = stablehlo.while(%i = %c0, %h = %cut, %ws = %w, %ys = %zeros) : tensor<i32>, tensor<4xf32>, tensor<5x4xf32>, tensor<5x4xf32>
  cond {
    %t = stablehlo.compare LT, %i, %c5 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %t : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %ws, %i, %c0, sizes = [1, 4] : (tensor<5x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %p = stablehlo.reshape %row : (tensor<1x4xf32>) -> tensor<4xf32>
    %m = stablehlo.multiply %h, %p : tensor<4xf32>
    %y = stablehlo.reshape %m : (tensor<4xf32>) -> tensor<1x4xf32>
    %u = stablehlo.dynamic_update_slice %ys, %y, %i, %c0 : (tensor<5x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<5x4xf32>
    %n = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %n, %m, %ws, %u : tensor<i32>, tensor<4xf32>, tensor<5x4xf32>, tensor<5x4xf32>
  }
  return %r#1, %r#3 : tensor<4xf32>, tensor<5x4xf32>
}
