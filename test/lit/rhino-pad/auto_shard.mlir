// RUN: rhino-opt %s --auto-shard --cluster=cpu4 --pad=arg0:1 --pin='arg0=[{}, {"x"}]' | filecheck %s
// RUN: rhino-opt %s --auto-shard --cluster=cpu4 --pad=arg0:1 --pin='arg0=[{}, {"x"}]' --localize | rhino-run --compare=%s
// RUN: printf '[[pad]]\nname = "arg0"\ndim = 1\n' >%t.toml
// RUN: rhino-opt %s --auto-shard --cluster=cpu4 --constraints=%t.toml --pin='arg0=[{}, {"x"}]' | filecheck %s
// RUN: not --exit-code=1 rhino-opt %s --auto-shard --cluster=cpu4 --pin='arg0=[{}, {"x"}]' 2>&1 | filecheck %s --check-prefix=UNEVEN
// RUN: not --exit-code=2 rhino-opt %s --auto-parallel --cluster=cpu4 --pad=arg0:1 2>&1 | filecheck %s --check-prefix=STAGES
// Ten columns are split over four devices where they may be stored as twelve, as the command line or a file says; else the pin is refused.
// A step that may be cut in stages is not padded.

// CHECK: func.func @main(%{{.*}}: tensor<6x12xf32> {rhino.padded = array<i64: 6, 10>, {{.*}}sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>

// UNEVEN: dim 1 has size 10, which "x" (4) does not divide
// UNEVEN: to fix: choose dims that whole axes divide, leave the sharding open for the search, or let dim 1 be stored with 12 elements (--pad=NAME:1)

// STAGES: [RHI-CLI-001] padding is allowed, and the step may be cut in stages
func.func @main(%w: tensor<6x10xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<2x6xf32>) -> tensor<6x10xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x6xf32>, tensor<6x10xf32>) -> tensor<2x10xf32>
  %e = stablehlo.exponential %y : tensor<2x10xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x10xf32>, tensor<f32>) -> tensor<2xf32>
  %all = stablehlo.broadcast_in_dim %sum, dims = [0] : (tensor<2xf32>) -> tensor<2x10xf32>
  %p = stablehlo.divide %e, %all : tensor<2x10xf32>
  %g = stablehlo.dot_general %x, %p, contracting_dims = [0] x [0] : (tensor<2x6xf32>, tensor<2x10xf32>) -> tensor<6x10xf32>
  %new = stablehlo.subtract %w, %g : tensor<6x10xf32>
  return %new : tensor<6x10xf32>
}
