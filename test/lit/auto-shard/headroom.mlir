// RUN: rhino-opt --auto-shard --cluster=h100x8 --plan=%t.json %s && rhino-plan explain %t.json | filecheck %s
// RUN: rhino-opt --auto-shard --cluster=h100x8 --budget=60GiB --plan=%t.given.json %s && rhino-plan explain %t.given.json | filecheck %s --check-prefix=GIVEN
// What the cluster gives leaves headroom, and a plan's explanation names it. A budget that is given is taken as it is.

// CHECK: memory predicted peak 35.3 MiB of 58.2 GiB per device
// CHECK-NEXT: headroom 1.8 GiB, 3% of what programs may use
// GIVEN: memory predicted peak 35.3 MiB of 60 GiB per device
// GIVEN-NOT: headroom
func.func @tight(%w: tensor<128x128xf32>, %x: tensor<128x128xf32>) -> tensor<128x128xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
  return %y : tensor<128x128xf32>
}
