// RUN: rhino-opt --auto-shard --localize --cluster=v100x8 %s | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=v100x8 %s -o %t.mlir
// RUN: rhino-run %t.mlir --compare=%s --devices=4 --form=localized
// The maximum over a split dim is the maximum of the parts' maxima: the collective that joins them does not add.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.*]]: tensor<8x16384xf32>
// CHECK: %[[PART:.*]] = stablehlo.reduce(%[[X]] init: %{{.*}}) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16384xf32>, {{.*}}
// CHECK-NEXT: %[[WHOLE:.*]] = "stablehlo.all_reduce"(%[[PART]])
// CHECK-NEXT: ^bb0(%[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>):
// CHECK-NEXT: %[[MAX:.*]] = stablehlo.maximum %[[A]], %[[B]]
// CHECK-NEXT: stablehlo.return %[[MAX]]
// CHECK-NEXT: }) : (tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT: return %[[WHOLE]]
sdy.mesh @mesh = <["x"=4]>
func.func @main(%x: tensor<8x65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %maxima = stablehlo.reduce(%x init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<8x65536xf32>, tensor<f32>) -> tensor<8xf32>
  return %maxima : tensor<8xf32>
}
