// RUN: rhino-opt --rhino-annotate-candidates=mesh=2x2 %s | filecheck %s
// On several axes a candidate is one choice for each, on what the axes before it left: two axes divide 4 rows between them, but only one
// of them 2 columns. Joined dims are split by the inner axis behind a leading one that the outer axis has used up.

// CHECK-LABEL: func.func @layer(
// CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh
// CHECK-SAME: {rhino.candidates = ["replicate, replicate", "replicate, i", "replicate, j", "i, replicate", "i, i", "i, j", "j, replicate", "j, i"]}
// CHECK-NEXT: %[[Z:.*]] = stablehlo.reshape %[[Y]]
// CHECK-SAME: "i, i"
// CHECK-NEXT: %[[J:.*]] = stablehlo.reshape %{{.*}} : (tensor<2x4xf32>) -> tensor<8xf32>
func.func @layer(%x: tensor<4x2xf32>, %w: tensor<2x4xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %y = stablehlo.tanh %x : tensor<4x2xf32>
  %z = stablehlo.reshape %y : (tensor<4x2xf32>) -> tensor<8xf32>
  %j = stablehlo.reshape %w : (tensor<2x4xf32>) -> tensor<8xf32>
  return %z, %j : tensor<8xf32>, tensor<8xf32>
}
