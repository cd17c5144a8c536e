// RUN: rhino-opt --rhino-amp --remarks-filter=amp --split-input-file --verify-diagnostics %s | filecheck %s
// A program that has products in 16 bits, or none in f32, stays as it is.

// expected-remark@unknown {{the program stays as it is: it has products in bf16, so its author has chosen types}}
// CHECK-LABEL: func.func @mixed
// CHECK: stablehlo.dot_general {{.*}} : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
// CHECK-NEXT: stablehlo.dot_general {{.*}} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
func.func @mixed(%x: tensor<8x8xbf16>, %y: tensor<8x8xf32>) -> (tensor<8x8xbf16>, tensor<8x8xf32>) {
  %a = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
  %b = stablehlo.dot_general %y, %y, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %a, %b : tensor<8x8xbf16>, tensor<8x8xf32>
}

// -----

// expected-remark@unknown {{the program stays as it is: it has no products in f32}}
// CHECK-LABEL: func.func @double
// CHECK: stablehlo.dot_general {{.*}} : (tensor<8x8xf64>, tensor<8x8xf64>) -> tensor<8x8xf64>
func.func @double(%x: tensor<8x8xf64>, %y: tensor<8x8xf32>) -> (tensor<8x8xf64>, tensor<8x8xf32>) {
  %a = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf64>, tensor<8x8xf64>) -> tensor<8x8xf64>
  %b = stablehlo.exponential %y : tensor<8x8xf32>
  return %a, %b : tensor<8x8xf64>, tensor<8x8xf32>
}
