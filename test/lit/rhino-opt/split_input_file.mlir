// RUN: rhino-opt --split-input-file --auto-shard --cluster=cpu4 %s | filecheck %s
// RUN: not rhino-opt --auto-shard --cluster=cpu4 %s 2>&1 | filecheck %s --check-prefix=WHOLE
// A file may hold several modules; they are processed one by one and printed with the same line between them.

// WHOLE: split_input_file.mlir:{{[0-9]+:[0-9]+}}: error: [RHI-READ-002] the module does not parse: redefinition of symbol named 'main'

// CHECK: module {
// CHECK: func.func @main(
// CHECK: stablehlo.sine
// CHECK: {{^}}// -----
// CHECK-NEXT: module {
// CHECK: func.func @main(
// CHECK: stablehlo.cosine
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.sine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.cosine %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
