// RUN: rhino-opt --rhino-annotate-work --rhino-annotate-candidates --cluster=cpu4 --rhino-strip %s | filecheck %s
// Our attributes and sharding rules go, on ops, arguments and results; shardings and everybody else's attributes stay.

// CHECK-LABEL: func.func @layer(
// CHECK-SAME: %[[X:.*]]: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>, tf.aliasing_output = 0 : i32})
// CHECK-SAME: -> (tensor<8xf32> {jax.result_info = "y"})
// CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh %[[X]] {mine = 1 : i64} : tensor<8xf32>
// CHECK-NEXT: return %[[Y]]
sdy.mesh @mesh = <["x"=4]>
func.func @layer(%x: tensor<8xf32> {rhino.pin = "hot", sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>, tf.aliasing_output = 0 : i32})
    -> (tensor<8xf32> {jax.result_info = "y", rhino.pin = "hot"}) {
  %y = stablehlo.tanh %x {mine = 1 : i64, rhino.strategy = "i", sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {i=8}>} : tensor<8xf32>
  return %y : tensor<8xf32>
}
