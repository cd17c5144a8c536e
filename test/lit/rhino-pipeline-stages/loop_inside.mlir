// RUN: rhino-opt --rhino-pipeline-stages="stages=2 tolerance=0.1" %s | filecheck %s
// RUN: rhino-opt --rhino-pipeline-stages="stages=2 tolerance=0.1" --verify-diagnostics --remarks-filter="this loop" %s
// A program without a backward pass, with its layers in a loop, cannot be cut inside that: the loop and all that is in it are in one stage, and
// a remark says so.

// CHECK: %[[END:.*]]:2 = stablehlo.while
// CHECK: stablehlo.tanh %{{.*}} {rhino.virtual_stage = 0 : i64}
// CHECK: stablehlo.dot_general %[[END]]#1, {{.*}}rhino.virtual_stage = 1 : i64
func.func @main(%x: tensor<32x32xf32>, %w: tensor<32x32xf32>) -> tensor<32x32xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  // expected-remark@+1 {{this loop is 83% of the work and all in one stage}}
  %end:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<32x32xf32> cond {
    %more = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %a = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    %b = stablehlo.tanh %a : tensor<32x32xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b : tensor<i32>, tensor<32x32xf32>
  }
  %o = stablehlo.dot_general %end#1, %w, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  return %o : tensor<32x32xf32>
}
