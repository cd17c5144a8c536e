// RUN: rhino-opt %s --auto-shard --aot --cluster=cpu8 --mesh=8 --remarks-filter=gap -o %t 2>&1 | filecheck %s
// RUN: not --exit-code=3 rhino-opt %s --auto-shard --localize --aot=memory --cluster=cpu8 --mesh=8 --budget=100KiB 2>&1 | filecheck %s --check-prefix=SMALL
// RUN: not --exit-code=2 rhino-opt %s --auto-shard --aot=speed 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not --exit-code=2 rhino-opt %s --auto-parallel --rhino-strip --aot 2>&1 | filecheck %s --check-prefix=PASSES
// RUN: not --exit-code=2 rhino-opt %s --auto-shard --compiles=3 2>&1 | filecheck %s --check-prefix=COMPILES
// The target's compiler says what a plan takes beside what was predicted; without a state there are no experts' plans.
// The remarks and the summary of the plan that is chosen are given as without.

// CHECK: compiled by XLA:CPU of jaxlib {{.*}}:
// CHECK-NEXT: plan form step times the best memory predicted
// CHECK-NEXT: * searched annotated {{.*}} 1.00 {{.*}}
// CHECK: aot.mlir{{.*}}: remark: [rhino-choose-shardings] step {{.*}} (gap 0.00%)
// CHECK-NEXT: rhino-opt: step {{.*}} mesh x=8
// SMALL: error: [RHI-SOLVE-001] no plan fits 100 KiB once compiled: the least takes 144 KiB (XLA:CPU of jaxlib {{.*}}), predicted {{.*}} KiB
// SMALL-NEXT: note: 64 KiB hold {{.*}}
// VALUE: [RHI-CLI-001] argument --aot: invalid choice: 'speed'
// PASSES: [RHI-CLI-001] --aot is for one module with --auto-shard, --localize and --micro-batches, or with --auto-parallel, and no other pass
// COMPILES: [RHI-CLI-001] --compiles is the number of compiles of --aot, 1 or more
func.func public @main(%x: tensor<64x256xf32>, %w: tensor<256x512xf32>) -> tensor<64x512xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x512xf32>) -> tensor<64x512xf32>
  return %0 : tensor<64x512xf32>
}
