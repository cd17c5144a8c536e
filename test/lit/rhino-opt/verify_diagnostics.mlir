// RUN: rhino-opt --rhino-normalize --split-input-file --verify-diagnostics %s
// RUN: not rhino-opt --verify-diagnostics %S/Inputs/unexpected.mlir > %t.stdout 2> %t.err
// RUN: cat %t.stdout %t.err | filecheck %s --check-prefix=ABSENT
// RUN: not rhino-opt --verify-diagnostics %S/Inputs/unmarked.mlir 2>&1 | filecheck %s --check-prefix=EXTRA
// RUN: not rhino-opt --verify-diagnostics %S/Inputs/misspelt.mlir 2>&1 | filecheck %s --check-prefix=FORM
// Every expected diagnostic has to come at its line, in the whole file's count, and no other may: the first run finds all as
// expected. In the others one does not come, one was not expected, and one cannot be read; then nothing is on stdout.

// ABSENT: unexpected.mlir:2: error: [RHI-CLI-004] expected error at line 3 was not produced: no such thing
// ABSENT-NEXT: note: to fix: remove it, or correct its line and text
// ABSENT-NEXT: unexpected.mlir:4: error: [RHI-CLI-004] expected remark at line 5 was not produced: nor such a remark
// EXTRA: unmarked.mlir:2:10: error: [RHI-CLI-004] unexpected error: [RHI-READ-002] the module does not parse: use of undeclared
// FORM: misspelt.mlir:2: error: [RHI-CLI-004] an expected diagnostic cannot be read
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+2 {{use of undeclared SSA value name}}
  // expected-note@+1 {{to fix: correct the module there}}
  return %undeclared : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %undeclared : tensor<4xf32>  // expected-error {{use of undeclared SSA value name}}
  // expected-note@-1 {{to fix: correct the module there}}
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %undeclared : tensor<4xf32>
  // expected-error@-1 {{use of undeclared SSA value name}}
  // expected-note@-2 {{to fix: correct the module there}}
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %undeclared : tensor<4xf32>
  // expected-error@above {{use of undeclared SSA value name}}
  // expected-note@-2 {{to fix: correct the module there}}
}

// -----

// expected-error@48 {{use of undeclared SSA value name}}
// expected-note@+2 {{to fix: correct the module there}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %undeclared : tensor<4xf32>
}
