// RUN: rhino-opt %s --auto-shard --cluster=v100x8 --mesh=2x4 --axis-role=x=batch --axis-role=y=model | filecheck %s --check-prefixes=CHECK,BATCH
// RUN: rhino-opt %s --auto-shard --cluster=v100x8 --mesh=2x4 --axis-role=x=model --axis-role=y=batch | filecheck %s --check-prefixes=CHECK,MODEL
// An axis for the batch splits what comes from the inputs, and one for the model all but that: the rows of the batch and the columns of the
// parameter; with the roles exchanged, the axes are.

// CHECK-LABEL: func.func @main(
// BATCH: stablehlo.dot_general %{{.*}} contracting_dims = [1] x [0] {{.*}}[<@mesh, [{"x"}, {"y"}]>]
// BATCH-NEXT: stablehlo.tanh {{.*}}[<@mesh, [{"x"}, {"y"}]>]
// MODEL: stablehlo.dot_general %{{.*}} contracting_dims = [1] x [0] {{.*}}[<@mesh, [{"y"}, {"x"}]>]
// MODEL-NEXT: stablehlo.tanh {{.*}}[<@mesh, [{"y"}, {"x"}]>]
func.func @main(%w: tensor<2048x2048xf32> {tf.aliasing_output = 0 : i32} loc("w"), %x: tensor<8192x2048xf32> loc("x"))
    -> tensor<2048x2048xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8192x2048xf32>, tensor<2048x2048xf32>) -> tensor<8192x2048xf32>
  %y = stablehlo.tanh %h : tensor<8192x2048xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<8192x2048xf32>, tensor<8192x2048xf32>) -> tensor<2048x2048xf32>
  %n = stablehlo.subtract %w, %g : tensor<2048x2048xf32>
  return %n : tensor<2048x2048xf32>
}
