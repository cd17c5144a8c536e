// RUN: rhino-opt --split-input-file --verify-diagnostics %s
// What ends the process in jaxlib's parser, or in its passes, is refused before they see it.

func.func @no_groups(%x: tensor<4x16xf32>) -> tensor<16x4xf32> {
  // expected-error@below {{[RHI-READ-002] an all_to_all has no replica groups}}
  // expected-note@below {{to fix: name at least one group of replicas}}
  %y = "stablehlo.all_to_all"(%x) {split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 4 : i64,
    replica_groups = dense<0> : tensor<0x2xi64>} : (tensor<4x16xf32>) -> tensor<16x4xf32>
  return %y : tensor<16x4xf32>
}

// -----

// expected-error@below {{[RHI-READ-004] a quantized tensor has a bounded dynamic shape}}
// expected-note@below {{to fix: export the program for fixed shapes}}
func.func @bounded(%x: tensor<?x?x!quant.uniform<i8:f32, 1.0:3>, #stablehlo.bounds<4, 4>>) {
  return
}

// -----

func.func @start_of_windows(%x: tensor<4x2xf32>, %start: tensor<2xf32>) -> tensor<2x1xf32> {
  // expected-error@below {{[RHI-READ-002] 'stablehlo.reduce_window' starts from a tensor<2xf32>, expected a scalar}}
  // expected-note@below {{to fix: start from one element}}
  %y = "stablehlo.reduce_window"(%x, %start) ({
  ^bb0(%a: tensor<2xf32>, %b: tensor<2xf32>):
    %sum = stablehlo.add %a, %b : tensor<2xf32>
    stablehlo.return %sum : tensor<2xf32>
  }) {padding = dense<[[2, 2], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 4, 2>, window_strides = array<i64: 3, 1>}
    : (tensor<4x2xf32>, tensor<2xf32>) -> tensor<2x1xf32>
  return %y : tensor<2x1xf32>
}

// -----

func.func @complex_scan(%x: tensor<2xcomplex<f32>>, %start: tensor<complex<f32>>) -> tensor<2xcomplex<f32>> {
  // expected-error@below {{[RHI-READ-003] 'chlo.scan' is of complex numbers}}
  // expected-note@below {{to fix: scan their real and imaginary parts}}
  %0:2 = chlo.scan(%x) inits(%start) dimension=0 {
  ^bb0(%one: tensor<complex<f32>>, %so_far: tensor<complex<f32>>):
    %sum = stablehlo.add %one, %so_far : tensor<complex<f32>>
    stablehlo.return %sum, %sum : tensor<complex<f32>>, tensor<complex<f32>>
  } : (tensor<2xcomplex<f32>>, tensor<complex<f32>>) -> (tensor<2xcomplex<f32>>, tensor<complex<f32>>)
  return %0#0 : tensor<2xcomplex<f32>>
}
