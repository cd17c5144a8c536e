// RUN: rhino-opt --pass-pipeline="builtin.module(rhino-pack-collectives{item-bytes=64})" --split-input-file %s | filecheck %s
// Small collectives that do not wait for each other are one: of any shape and dim, laid out as rows.

sdy.mesh @mesh = <["x"=2]>

// Sums of one kind are concatenated, and taken out of what comes.
// CHECK-LABEL: func.func @main
func.func @main(%a: tensor<2x3xf32>, %b: tensor<4xf32>) -> (tensor<2x3xf32>, tensor<4xf32>) {
  // CHECK: %[[A:.*]] = stablehlo.reshape %arg0 : (tensor<2x3xf32>) -> tensor<1x6xf32>
  // CHECK: %[[B:.*]] = stablehlo.reshape %arg1 : (tensor<4xf32>) -> tensor<1x4xf32>
  // CHECK: %[[SENT:.*]] = stablehlo.concatenate %[[A]], %[[B]], dim = 1
  // CHECK: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[SENT]])
  // CHECK: %[[OWN_A:.*]] = stablehlo.slice %[[SUM]] [0:1, 0:6]
  // CHECK: %[[OWN_B:.*]] = stablehlo.slice %[[SUM]] [0:1, 6:10]
  // CHECK-NOT: all_reduce
  %0 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %sum = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %1 = "stablehlo.all_reduce"(%b) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, use_global_device_ids}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %sum = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<4xf32>
}

// -----

sdy.mesh @mesh = <["x"=2]>

// What is scattered along dim 1 is cut in two rows, one for each device. A bucket waits for what its
// members read, and holds 64 bytes: the third is not in it.
// CHECK-LABEL: func.func @main
func.func @main(%a: tensor<2x4xf32>, %b: tensor<2xf32>, %c: tensor<6xf32>) -> (tensor<2x2xf32>, tensor<2xf32>, tensor<3xf32>) {
  // CHECK: %[[GATHERED:.*]] = "stablehlo.all_gather"(%arg1)
  // CHECK: %[[BLOCKS:.*]] = stablehlo.reshape %arg0 : (tensor<2x4xf32>) -> tensor<2x2x2xf32>
  // CHECK: %[[FIRST:.*]] = stablehlo.transpose %[[BLOCKS]], dims = [1, 0, 2]
  // CHECK: %[[A:.*]] = stablehlo.reshape %[[FIRST]] : (tensor<2x2x2xf32>) -> tensor<2x4xf32>
  // CHECK: %[[SENT:.*]] = stablehlo.concatenate %[[A]], {{.*}}, dim = 1 : (tensor<2x4xf32>, tensor<2x2xf32>) -> tensor<2x6xf32>
  // CHECK: "stablehlo.reduce_scatter"(%[[SENT]]) <{{.*}}scatter_dimension = 0
  // CHECK: (tensor<2x6xf32>) -> tensor<1x6xf32>
  // CHECK: "stablehlo.reduce_scatter"(%arg2)
  %0 = "stablehlo.reduce_scatter"(%a) <{scatter_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %sum = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) : (tensor<2x4xf32>) -> tensor<2x2xf32>
  %1 = "stablehlo.all_gather"(%b) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, use_global_device_ids}> : (tensor<2xf32>) -> tensor<4xf32>
  %2 = "stablehlo.reduce_scatter"(%1) <{scatter_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, use_global_device_ids}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %sum = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<2xf32>
  %3 = "stablehlo.reduce_scatter"(%c) <{scatter_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 4, type = 1>, use_global_device_ids}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %sum = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) : (tensor<6xf32>) -> tensor<3xf32>
  return %0, %2, %3 : tensor<2x2xf32>, tensor<2xf32>, tensor<3xf32>
}
