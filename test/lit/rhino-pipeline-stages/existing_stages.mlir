// RUN: rhino-opt --rhino-pipeline-stages="stages=2 tolerance=1" %s | filecheck %s
// RUN: rhino-opt --rhino-pipeline-stages="stages=2 tolerance=1" --rhino-pipeline-stages=stages=2 %s | filecheck %s
// Stages that ops have already are constraints. Nothing would move here if all ops were in one stage; with two of them apart, what stands
// between is where the least crosses. What comes out has stages everywhere, and is left as it is the second time.

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[A:.*]] = stablehlo.tanh %{{.*}} {rhino.virtual_stage = 0 : i64} : tensor<64x64xf32>
// CHECK-NEXT: %[[B:.*]] = stablehlo.slice %[[A]] [0:1, 0:1] {rhino.virtual_stage = 0 : i64}
// CHECK-NEXT: %[[C:.*]] = stablehlo.sine %[[B]] {rhino.virtual_stage = 1 : i64} : tensor<1x1xf32>
// CHECK-NEXT: stablehlo.cosine %[[C]] {rhino.virtual_stage = 1 : i64} : tensor<1x1xf32>
func.func @main(%x: tensor<64x64xf32>) -> tensor<1x1xf32> {
  %a = stablehlo.tanh %x {rhino.virtual_stage = 0 : i64} : tensor<64x64xf32>
  %b = stablehlo.slice %a [0:1, 0:1] : (tensor<64x64xf32>) -> tensor<1x1xf32>
  %c = stablehlo.sine %b {rhino.virtual_stage = 1 : i64} : tensor<1x1xf32>
  %d = stablehlo.cosine %c : tensor<1x1xf32>
  return %d : tensor<1x1xf32>
}
