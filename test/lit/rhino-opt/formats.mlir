// RUN: rhino-opt %s | filecheck %s
// RUN: rhino-opt - < %s | filecheck %s
// RUN: rhino-opt < %s | filecheck %s
// RUN: rhino-opt --emit-bytecode %s -o %t.mlirbc
// RUN: rhino-opt %t.mlirbc | filecheck %s
// RUN: rhino-opt < %t.mlirbc | filecheck %s
// RUN: %python %S/Inputs/portable.py %s %t.vhlo
// RUN: rhino-opt %t.vhlo | filecheck %s
// Text, MLIR bytecode and portable artifacts are told apart by what is in them, from a file and from stdin.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.*]]: tensor<4xf32>)
// CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh %[[X]] : tensor<4xf32>
// CHECK-NEXT: return %[[Y]]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.tanh %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
