// RUN: rhino-opt --auto-shard --cluster=cpu4 %s -o %t.mlir
// RUN: rhino-run %t.mlir
// RUN: rhino-opt --localize %t.mlir | filecheck %s
// A product whose parts are summed may read what is padded, with anything, in a loop too.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.while
// CHECK: %[[P:.*]] = stablehlo.pad %arg0, %cst
// CHECK-NEXT: %[[Q:.*]] = stablehlo.pad %arg1, %cst
// CHECK-NEXT: stablehlo.dot_general %[[P]], %[[Q]], contracting_dims = [0] x [0] : (tensor<2x8xf32>, tensor<2x8xf32>)
// CHECK-NOT: stablehlo.reshape
func.func @main(
    %a: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %b: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %padding = stablehlo.constant dense<1.0> : tensor<f32>
  %start = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %h = %start) : tensor<i32>, tensor<8x8xf32>
  cond {
    %c = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %p = stablehlo.pad %a, %padding, low = [0, 0], high = [0, 2], interior = [0, 0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<8x8xf32>
    %q = stablehlo.pad %b, %padding, low = [0, 0], high = [0, 2], interior = [0, 0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<8x8xf32>
    %d = stablehlo.dot_general %p, %q, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %e = stablehlo.add %h, %d : tensor<8x8xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %e : tensor<i32>, tensor<8x8xf32>
  }
  return %0#1 : tensor<8x8xf32>
}
