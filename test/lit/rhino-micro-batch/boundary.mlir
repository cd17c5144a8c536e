// RUN: rhino-opt --micro-batches=2 %s | filecheck %s
// What is said of arguments and results stays, with its mesh: they are those of the whole step.

// CHECK: sdy.mesh @mesh = <["x"=2]>
// CHECK-NEXT: func.func @main(%{{.*}}: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>, tf.aliasing_output = 0 : i32}, %{{.*}}: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<6xf32> {jax.result_info = "new"})
// CHECK: stablehlo.while
// CHECK-NOT: sdy.sharding
sdy.mesh @mesh = <["x"=2]>
func.func @main(%w: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>, tf.aliasing_output = 0 : i32}, %x: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<6xf32> {jax.result_info = "new"}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
  %new = stablehlo.add %w, %s : tensor<6xf32>
  return %new : tensor<6xf32>
}
