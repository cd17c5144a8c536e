// RUN: rhino-opt --auto-shard --cluster=v100x8 --split-input-file %s | filecheck %s
// An open dim may get more axes behind those that it has, a closed one may not, and an axis that is listed as replicated is used for
// no dim at all.

// CHECK-LABEL: func.func @more_behind(
// CHECK-SAME: tensor<2048x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @more_behind(%a: tensor<2048x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {}]>}) -> tensor<2048x512xf32> {
  %b = stablehlo.tanh %a : tensor<2048x512xf32>
  return %b : tensor<2048x512xf32>
}

// -----

// CHECK-LABEL: func.func @no_more(
// CHECK-SAME: tensor<2048x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @no_more(%a: tensor<2048x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<2048x512xf32> {
  %b = stablehlo.tanh %a : tensor<2048x512xf32>
  return %b : tensor<2048x512xf32>
}

// -----

// CHECK-LABEL: func.func @not_along_y(
// CHECK-SAME: tensor<2048x511xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @not_along_y(%a: tensor<2048x511xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}], replicated={"y"}>}) -> tensor<2048x511xf32> {
  %b = stablehlo.tanh %a : tensor<2048x511xf32>
  return %b : tensor<2048x511xf32>
}

// -----

// Nothing goes behind "y": the outer axis of a dim comes first.
// CHECK-LABEL: func.func @behind_the_last(
// CHECK-SAME: tensor<2048x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @behind_the_last(%a: tensor<2048x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", ?}, {}]>}) -> tensor<2048x512xf32> {
  %b = stablehlo.tanh %a : tensor<2048x512xf32>
  return %b : tensor<2048x512xf32>
}
