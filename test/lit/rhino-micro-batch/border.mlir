// RUN: rhino-opt --micro-batches=2 --split-input-file %s | filecheck %s
// RUN: rhino-opt --rhino-micro-batch="num=2 widen=false" --split-input-file %s | filecheck %s --check-prefix=NARROW
// As little is accumulated as can be: the gradient itself where its square is needed too, the sum of two contributions, and what the
// program widens after it has widened it.

// CHECK-LABEL: func.func @square
// CHECK:       %[[DONE:.*]]:2 = stablehlo.while(%{{.*}}, %[[SUM:.*]] = %{{.*}}) : tensor<i32>, tensor<6xf32>
// CHECK:       %[[TENTH:.*]] = stablehlo.multiply %[[DONE]]#1, %{{.*}} : tensor<6xf32>
// CHECK:       %[[SQUARE:.*]] = stablehlo.multiply %[[DONE]]#1, %[[DONE]]#1 : tensor<6xf32>
func.func @square(%m: tensor<6xf32> {tf.aliasing_output = 0 : i32}, %v: tensor<6xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<8x6xf32>, %y: tensor<8xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
  %tenth = stablehlo.constant dense<0.1> : tensor<6xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8xf32>) -> tensor<6xf32>
  %part = stablehlo.multiply %g, %tenth : tensor<6xf32>
  %square = stablehlo.multiply %g, %g : tensor<6xf32>
  %newm = stablehlo.add %m, %part : tensor<6xf32>
  %newv = stablehlo.add %v, %square : tensor<6xf32>
  return %newm, %newv : tensor<6xf32>, tensor<6xf32>
}

// -----

// CHECK-LABEL: func.func @two
// CHECK:       stablehlo.while(%{{.*}}, %[[SUM:.*]] = %{{.*}}) : tensor<i32>, tensor<6xf32>
// CHECK:         %[[BOTH:.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<6xf32>
// CHECK-NEXT:    stablehlo.add %[[SUM]], %[[BOTH]] : tensor<6xf32>
func.func @two(%w: tensor<6xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x6xf32>, %y: tensor<8x6xf32>, %z: tensor<8xf32>) -> tensor<6xf32> {
  %a = stablehlo.dot_general %x, %z, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8xf32>) -> tensor<6xf32>
  %b = stablehlo.dot_general %y, %z, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8xf32>) -> tensor<6xf32>
  %g = stablehlo.add %a, %b : tensor<6xf32>
  %new = stablehlo.subtract %w, %g : tensor<6xf32>
  return %new : tensor<6xf32>
}

// -----

// CHECK-LABEL: func.func @wide
// CHECK:       stablehlo.while(%{{.*}}, %[[SUM:.*]] = %{{.*}}) : tensor<i32>, tensor<6xf32>
// CHECK:         %[[G:.*]] = stablehlo.dot_general {{.*}} -> tensor<6xbf16>
// CHECK-NEXT:    %[[WIDE:.*]] = stablehlo.convert %[[G]] : (tensor<6xbf16>) -> tensor<6xf32>
// CHECK-NEXT:    stablehlo.add %[[SUM]], %[[WIDE]] : tensor<6xf32>
// NARROW-LABEL: func.func @wide
// NARROW: stablehlo.while({{.*}}) : tensor<i32>, tensor<6xf32>
func.func @wide(%w: tensor<6xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x6xbf16>, %y: tensor<8xbf16>) -> tensor<6xf32> {
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<8x6xbf16>, tensor<8xbf16>) -> tensor<6xbf16>
  %wide = stablehlo.convert %g : (tensor<6xbf16>) -> tensor<6xf32>
  %new = stablehlo.subtract %w, %wide : tensor<6xf32>
  return %new : tensor<6xf32>
}

// -----

// CHECK-LABEL: func.func @narrow
// CHECK:       %[[DONE:.*]]:2 = stablehlo.while(%{{.*}}, %[[SUM:.*]] = %{{.*}}) : tensor<i32>, tensor<6xf32>
// CHECK:       stablehlo.convert %[[DONE]]#1 : (tensor<6xf32>) -> tensor<6xbf16>
// NARROW-LABEL: func.func @narrow
// NARROW: stablehlo.while({{.*}}) : tensor<i32>, tensor<6xbf16>
func.func @narrow(%w: tensor<6xbf16> {tf.aliasing_output = 0 : i32}, %x: tensor<8x6xbf16>, %y: tensor<8xbf16>) -> tensor<6xbf16> {
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<8x6xbf16>, tensor<8xbf16>) -> tensor<6xbf16>
  %new = stablehlo.subtract %w, %g : tensor<6xbf16>
  return %new : tensor<6xbf16>
}
