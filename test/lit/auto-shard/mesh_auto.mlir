// RUN: rhino-opt --auto-shard --cluster=cpu8 --mesh=auto --remarks-filter="mesh |step" %s 2>&1 | filecheck %s
// With auto, every mesh of one or two axes is planned for until its bound is not below the best step, and the best is written; here two axes divide the tensor into eight.

// CHECK: remark: [rhino-choose-shardings] mesh x=8: step 93.6 us, at least
// CHECK-NEXT: remark: [rhino-choose-shardings] mesh x=2,y=4: step 11.7 us, at least
// CHECK-NEXT: remark: [rhino-choose-shardings] mesh x=4,y=2: given up, at least 11.7 us
// CHECK: sdy.mesh @mesh = <["x"=2, "y"=4]>
// CHECK-LABEL: func.func public @main
// CHECK-SAME: [{"y"}, {}, {"x"}]
func.func public @main(%x: tensor<4x4095x2xf32>) -> tensor<4x4095x2xf32> {
  %y = stablehlo.exponential %x : tensor<4x4095x2xf32>
  return %y : tensor<4x4095x2xf32>
}
