// RUN: rhino-opt --auto-shard --localize %s | filecheck %s
// A token that a loop carries goes round in the program of each device as it did.

sdy.mesh @mesh = <["x"=4]>

// CHECK-LABEL: func.func @main(
// CHECK: %[[END:.*]]:3 = stablehlo.while(%[[T:.*]] = %{{.*}}, %{{.*}} = %{{.*}}, %{{.*}} = %{{.*}}) : !stablehlo.token, tensor<8x24xf32>, tensor<i32>
// CHECK: stablehlo.return %[[T]], %{{.*}}, %{{.*}} : !stablehlo.token, tensor<8x24xf32>, tensor<i32>
// CHECK: return %[[END]]#1, %[[END]]#0 : tensor<8x24xf32>, !stablehlo.token
func.func @main(%x: tensor<32x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<32x24xf32>, !stablehlo.token) {
  %t = stablehlo.after_all : !stablehlo.token
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %most = stablehlo.constant dense<32> : tensor<i32>
  %end:3 = stablehlo.while(%token = %t, %v = %x, %i = %zero) : !stablehlo.token, tensor<32x24xf32>, tensor<i32>
  cond {
    %more = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %u = stablehlo.tanh %v : tensor<32x24xf32>
    stablehlo.return %token, %u, %j : !stablehlo.token, tensor<32x24xf32>, tensor<i32>
  }
  return %end#1, %end#0 : tensor<32x24xf32>, !stablehlo.token
}
