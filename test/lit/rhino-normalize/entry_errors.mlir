// RUN: rhino-opt --rhino-normalize --split-input-file --verify-diagnostics %s
// A module has to have one entry: @main, or else the only public function.

// expected-error@unknown {{[RHI-READ-005] the module needs one public function with a body as its entry; its public functions: none}}
// expected-note@unknown {{to fix: name the entry @main, or make the others private}}
func.func private @helper() {
  return
}

// -----

// expected-error@unknown {{its public functions: @a, @b}}
// expected-note@unknown {{to fix: name the entry @main, or make the others private}}
func.func @a() {
  return
}
func.func @b() {
  return
}
