// RUN: rhino-opt --rhino-amp --remarks-filter=amp --split-input-file --verify-diagnostics %s | filecheck %s
// Products stay in f32 where the program asks for more than the default precision, where the result is one number, and where they update
// parameters: what follows from a moment does. So does what meets a number that bf16 does not hold, and a polynomial. An update is in f32, whatever
// the gradient is in.

// expected-remark@unknown {{1 of 3 products compute in bf16}}
// CHECK-LABEL: func.func @precise
// CHECK: stablehlo.dot_general {{.*}} : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xf32>
// CHECK: stablehlo.dot_general {{.*}}precision = [HIGHEST, HIGHEST] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
// CHECK: stablehlo.dot_general {{.*}} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<f32>
func.func @precise(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>) {
  %a = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-remark@below {{'stablehlo.dot_general' stays in f32: the program asks for more than the default precision}}
  %b = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-remark@below {{'stablehlo.dot_general' stays in f32: it is a sum: its result is one number}}
  %c = stablehlo.dot_general %x, %x, contracting_dims = [0, 1] x [0, 1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<f32>
  return %a, %b, %c : tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>
}

// -----

// expected-remark@unknown {{2 of 3 products compute in bf16}}
// CHECK-LABEL: func.func @update
// CHECK: stablehlo.dot_general {{.*}} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
// CHECK: stablehlo.dot_general {{.*}} : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<8x8xf32>
// CHECK: stablehlo.dot_general {{.*}} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
func.func @update(%w: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}, %m: tensor<8x8xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<4x8xf32>)
    -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %g = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %moment = stablehlo.add %m, %g : tensor<8x8xf32>
  // expected-remark@below {{'stablehlo.dot_general' stays in f32: it updates parameters}}
  %step = stablehlo.dot_general %moment, %moment, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %new = stablehlo.subtract %w, %step : tensor<8x8xf32>
  return %new, %moment, %y : tensor<8x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>
}

// -----

// expected-remark@unknown {{2 of 2 products compute in bf16}}
// CHECK-LABEL: func.func @large
// CHECK: %[[LEAST:.*]] = stablehlo.constant dense<-3.40282347E+38> : tensor<8x8xf32>
// CHECK: stablehlo.select %{{.*}}, %{{.*}}, %[[LEAST]] : tensor<8x8xi1>, tensor<8x8xf32>
func.func @large(%x: tensor<8x8xf32>, %mask: tensor<8x8xi1>) -> tensor<8x8xf32> {
  %least = stablehlo.constant dense<0xFF7FFFFF> : tensor<8x8xf32>
  %zero = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %a = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = stablehlo.select %mask, %a, %least : tensor<8x8xi1>, tensor<8x8xf32>
  %e = stablehlo.exponential %b : tensor<8x8xf32>
  %c = stablehlo.dot_general %e, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %c : tensor<8x8xf32>
}

// -----

// expected-remark@unknown {{2 of 2 products compute in bf16}}
// CHECK-LABEL: func.func @polynomial
// CHECK: %[[A:.*]] = stablehlo.dot_general {{.*}} -> tensor<8x8xbf16>
// CHECK-NEXT: %[[X:.*]] = stablehlo.convert %[[A]] : (tensor<8x8xbf16>) -> tensor<8x8xf32>
// CHECK-NEXT: %[[P0:.*]] = stablehlo.multiply %[[X]], %{{.*}} : tensor<8x8xf32>
// CHECK-NEXT: %[[P1:.*]] = stablehlo.add %[[P0]], %{{.*}} : tensor<8x8xf32>
// CHECK-NEXT: %[[P2:.*]] = stablehlo.multiply %[[P1]], %[[X]] : tensor<8x8xf32>
// CHECK-NEXT: %[[P3:.*]] = stablehlo.add %[[P2]], %{{.*}} : tensor<8x8xf32>
// CHECK-NEXT: %[[P4:.*]] = stablehlo.multiply %[[P3]], %[[X]] : tensor<8x8xf32>
// CHECK-NEXT: %[[P5:.*]] = stablehlo.add %[[P4]], %{{.*}} : tensor<8x8xf32>
// CHECK-NEXT: stablehlo.convert %[[P5]] : (tensor<8x8xf32>) -> tensor<8x8xbf16>
func.func @polynomial(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %c0 = stablehlo.constant dense<0.5> : tensor<8x8xf32>
  %c1 = stablehlo.constant dense<0.25> : tensor<8x8xf32>
  %c2 = stablehlo.constant dense<0.125> : tensor<8x8xf32>
  %a = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %p0 = stablehlo.multiply %a, %c0 : tensor<8x8xf32>
  %p1 = stablehlo.add %p0, %c1 : tensor<8x8xf32>
  %p2 = stablehlo.multiply %p1, %a : tensor<8x8xf32>
  %p3 = stablehlo.add %p2, %c2 : tensor<8x8xf32>
  %p4 = stablehlo.multiply %p3, %a : tensor<8x8xf32>
  %p5 = stablehlo.add %p4, %c0 : tensor<8x8xf32>
  %b = stablehlo.dot_general %p5, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %b : tensor<8x8xf32>
}

// -----

// expected-remark@unknown {{3 of 3 products compute in bf16}}
// CHECK-LABEL: func.func @added
// CHECK-SAME: %[[P:.*]]: tensor<8x8xf32> {{.*}}, %[[X:.*]]: tensor<8x8xf32>
// CHECK: %[[B:.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<8x8xbf16>
// CHECK-NEXT: %[[C:.*]] = stablehlo.dot_general %[[B]], {{.*}} -> tensor<8x8xbf16>
// CHECK-NEXT: %[[G16:.*]] = stablehlo.add %[[C]], %[[C]] : tensor<8x8xbf16>
// CHECK: %[[G:.*]] = stablehlo.convert %[[G16]] : (tensor<8x8xbf16>) -> tensor<8x8xf32>
// CHECK-NEXT: stablehlo.subtract %[[P]], %[[G]] : tensor<8x8xf32>
func.func @added(%p: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %a = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = stablehlo.add %a, %p : tensor<8x8xf32>
  %c = stablehlo.dot_general %b, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %g = stablehlo.add %c, %c : tensor<8x8xf32>
  %d = stablehlo.dot_general %g, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %new = stablehlo.subtract %p, %g : tensor<8x8xf32>
  return %new, %d : tensor<8x8xf32>, tensor<8x8xf32>
}
