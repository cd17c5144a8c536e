// RUN: rhino-opt %s --rhino-pin | filecheck %s
// Where the user says nothing, nothing is written: not even a mesh.

// CHECK: module {
// CHECK-NEXT: func.func @main(%{{.*}}: tensor<8xf32>) -> tensor<8xf32> {
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
