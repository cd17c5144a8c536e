// RUN: rhino-opt %s --rhino-scope-stages="scope=up=split(4)" | filecheck %s
// RUN: not rhino-opt %s --rhino-scope-stages 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: rhino-opt %s --rhino-scope-stages="scope=up=split(4)" --rhino-pin="scope=up=split(4) scope-replicas=2 scope-stages=1" | filecheck %s --check-prefix=FOLLOWED
// RUN: rhino-opt %s --rhino-scope-stages="scope=up=split(4)" --remarks-filter=rhino-scope-stages 2>&1 | filecheck %s --check-prefix=REMARK
// A scope is a stage, whether the model or an option names it. What follows from a later scope is of the backward pass; what is in no scope, and
// what a default is around, is left to the search of stages. On the mesh of one stage its scopes alone are followed, in as many replicas as there are.

// OTHER: error: [RHI-STAGE-001] 1 scopes compute something of a micro-batch, and 2 stages are requested

// REMARK: remark: [rhino-scope-stages] stage 0 has the 3 ops of rhino.replicate(2)
// REMARK: remark: [rhino-scope-stages] stage 1 has the 3 ops of scope 'up=split(4)'

// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[H:.*]] = stablehlo.dot_general %arg0, %arg1, {{.*}} {rhino.virtual_stage = 0 : i64}
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[H]] : tensor<32x32xf32>
// CHECK-NEXT: %[[O:.*]] = stablehlo.dot_general %[[T]], %arg2, {{.*}} {rhino.virtual_stage = 1 : i64}
// CHECK-NEXT: %[[S:.*]] = stablehlo.subtract %[[O]], %arg0 : tensor<32x32xf32>
// CHECK-NEXT: %[[GV:.*]] = stablehlo.dot_general %[[T]], %[[S]], {{.*}} {rhino.virtual_stage = 1 : i64}
// CHECK-NEXT: %[[GH:.*]] = stablehlo.dot_general %[[S]], %arg2, {{.*}} {rhino.virtual_stage = 1 : i64}
// CHECK-NEXT: %[[GU:.*]] = stablehlo.dot_general %arg0, %[[GH]], {{.*}} {rhino.virtual_stage = 2 : i64}
// CHECK-NEXT: stablehlo.subtract %arg1, %[[GU]] {rhino.stage = 0 : i64}
// CHECK-NEXT: stablehlo.subtract %arg2, %[[GV]] : tensor<32x32xf32>

// FOLLOWED-COUNT-3: rhino.scopes = ["replicate(2)", "split(4)"], rhino.virtual_stage = 1
func.func @main(%x: tensor<32x32xf32>, %u: tensor<32x32xf32> {tf.aliasing_output = 0 : i32}, %v: tensor<32x32xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<32x32xf32>, tensor<32x32xf32>) {
  %h = stablehlo.dot_general %x, %u, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32> loc("jit(step)/jvp(rhino.replicate[2].7)/dot_general")
  %t = stablehlo.tanh %h : tensor<32x32xf32> loc("jit(step)/jvp(rhino.default.split.8)/tanh")
  %o = stablehlo.dot_general %t, %v, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32> loc("jit(step)/jvp(up)/dot_general")
  %s = stablehlo.subtract %o, %x : tensor<32x32xf32> loc("jit(step)/sub")
  %gv = stablehlo.dot_general %t, %s, contracting_dims = [0] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32> loc("jit(step)/transpose(jvp(up))/dot_general")
  %gh = stablehlo.dot_general %s, %v, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32> loc("jit(step)/transpose(jvp(up))/dot_general")
  %gu = stablehlo.dot_general %x, %gh, contracting_dims = [0] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32> loc("jit(step)/transpose(jvp(rhino.replicate[2].7))/dot_general")
  %new_u = stablehlo.subtract %u, %gu : tensor<32x32xf32> loc("jit(step)/rhino.replicate[2].7/sub")
  %new_v = stablehlo.subtract %v, %gv : tensor<32x32xf32> loc("jit(step)/sub")
  return %new_u, %new_v : tensor<32x32xf32>, tensor<32x32xf32>
}
