// RUN: rhino-opt --auto-shard --cluster=cpu8 %s | filecheck %s
// A program of scalars runs whole on every device; the mesh is there all the same.

// CHECK: sdy.mesh @mesh = <["x"=8]>
// CHECK-LABEL: func.func @count(
// CHECK-SAME: %[[N:.*]]: tensor<i32> {sdy.sharding = #sdy.sharding<@mesh, []>})
// CHECK-NEXT: %[[ONE:.*]] = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>]>} dense<1>
// CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[N]], %[[ONE]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>]>}
// CHECK-NEXT: return %[[NEXT]]
func.func @count(%n: tensor<i32>) -> tensor<i32> {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %next = stablehlo.add %n, %one : tensor<i32>
  return %next : tensor<i32>
}
