// RUN: rhino-opt --pass-pipeline='rhino-pad{pad=arg0:3 parts=4}' --verify-diagnostics %s
// RUN: not --exit-code=1 rhino-opt --pass-pipeline='rhino-pad{pad=v}' %s 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not --exit-code=2 rhino-opt --pass-pipeline='rhino-pad{pad=arg0:x}' %s 2>&1 | filecheck %s --check-prefix=TEXT
// RUN: not --exit-code=2 rhino-opt --pass-pipeline='rhino-pad{pad=arg0 parts=-1}' %s 2>&1 | filecheck %s --check-prefix=PARTS
// What may be padded has to be there, as a name and as the number of a dim, and parts are counted from one.

// NONE: [RHI-PIN-002] pad 'v' matches no argument
// TEXT: [RHI-CLI-001] pad 'arg0:x': expected
// PARTS: [RHI-PASS-001] pass 'rhino-pad' takes 0 parts or more, not -1

// expected-error@unknown {{[RHI-PIN-002] pad 'arg0:3': argument 0 "arg0" tensor<6x6xf32> has no dim 3}}
// expected-note@unknown {{to fix: dims count from 0: NAME:DIM}}
func.func @main(%w: tensor<6x6xf32>) -> tensor<6x6xf32> {
  return %w : tensor<6x6xf32>
}
