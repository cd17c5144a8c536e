// RUN: rhino-opt --pass-pipeline='rhino-pad{pad=arg0 parts=4}' --remarks-filter=masks %s 2>%t.err | filecheck %s
// RUN: cat %t.err | filecheck %s --check-prefix=WHY
// RUN: rhino-opt --pass-pipeline='rhino-pad{pad=arg0 parts=4}' %s | rhino-run --compare=%s
// A loop carries padded rows from its begin to its end; what it adds up holds zeros there all the time, so its products need no mask.

// WHY: remark: [rhino-pad] 0 masks keep padding out of answers; 0 ops read or give dims cut: none

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:.*]]: tensor<8x8xf32> {rhino.padded = array<i64: 6, 6>}, %[[X:.*]]: tensor<2x8xf32> {rhino.padded = array<i64: 2, 6>})
// CHECK: %[[ALL:.*]]:2 = stablehlo.while(%{{.*}} = %{{.*}}, %[[H:.*]] = %[[X]]) : tensor<i32>, tensor<2x8xf32>
// CHECK: %[[Y:.*]] = stablehlo.dot_general %[[H]], %[[W]], contracting_dims = [1] x [0] : {{.*}} -> tensor<2x8xf32>
// CHECK: stablehlo.tanh %[[Y]] : tensor<2x8xf32>
// CHECK: stablehlo.slice %[[ALL]]#1 [0:2, 0:6]
func.func @main(%w: tensor<6x6xf32>, %x: tensor<2x6xf32>) -> tensor<2x6xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<2x6xf32>
  cond {
    %c = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<2x6xf32>, tensor<6x6xf32>) -> tensor<2x6xf32>
    %t = stablehlo.tanh %y : tensor<2x6xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<2x6xf32>
  }
  return %0#1 : tensor<2x6xf32>
}
