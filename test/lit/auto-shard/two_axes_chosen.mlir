// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=2x2 %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=v100x8 --mesh=data=2,model=2 %s | filecheck %s --check-prefix=NAMED
// With nothing given, a product of many rows is split by rows along both axes, and its weights are everywhere; the mesh has the names
// asked for.

// CHECK: sdy.mesh @mesh = <["x"=2, "y"=2]>
// CHECK-LABEL: func.func @product(
// CHECK: stablehlo.dot_general %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>}

// NAMED: sdy.mesh @mesh = <["data"=2, "model"=2]>
// NAMED: stablehlo.dot_general %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data", "model"}, {}]>]>}
func.func @product(%x: tensor<4096x512xf32>, %w: tensor<512x512xf32>) -> tensor<4096x512xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x512xf32>, tensor<512x512xf32>) -> tensor<4096x512xf32>
  return %y : tensor<4096x512xf32>
}
