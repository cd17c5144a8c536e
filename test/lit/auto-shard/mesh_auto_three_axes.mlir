// RUN: rhino-opt --auto-shard --cluster=%S/Inputs/three_levels.toml --mesh=auto --remarks-filter="mesh |step" %s 2>&1 | filecheck %s
// On three levels auto plans for meshes of three axes, too: the one of the levels first, and those next to the best. No two axes divide this tensor into eight.

// CHECK: remark: [rhino-choose-shardings] mesh x=2,y=2,z=2: step 36.4 us, at least
// CHECK-NEXT: remark: [rhino-choose-shardings] mesh x=8: given up, at least 291 us
// CHECK-NEXT: remark: [rhino-choose-shardings] mesh x=2,y=4: given up, at least 146 us
// CHECK-NEXT: remark: [rhino-choose-shardings] mesh x=4,y=2: given up, at least 146 us
// CHECK: sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<2x2x4095x2xf32>) -> tensor<2x2x4095x2xf32> {
  %y = stablehlo.exponential %x : tensor<2x2x4095x2xf32>
  return %y : tensor<2x2x4095x2xf32>
}
