"""A compiler whose figures are given, for tests of what is chosen by them."""

from rhino.ir.diagnostics import RhinoError
from rhino.ir.hlo.compiled import Compiled


class FakeCompiler:
    """Gives the n-th module the n-th of `peaks` (bytes) and `steps` (megabytes moved), and the last to all others."""

    def __init__(self, peaks=(1,), steps=(1,), refused=()):
        self.peaks, self.steps, self.refused, self.num = peaks, steps, refused, 0

    def __call__(self, code):
        number, self.num = self.num, self.num + 1
        if number in self.refused:
            raise RhinoError("RHI-AOT-001", "it does not compile")
        size = self.steps[min(number, len(self.steps) - 1)] << 17
        lines = f"  %a = f32[{size}] parameter(0)\n  %n = f32[{size}] negate(%a)"
        hlo = f"HloModule m\n\nENTRY %main () -> f32[] {{\n{lines}\n}}\n"
        peak = self.peaks[min(number, len(self.peaks) - 1)]
        return Compiled(peak, ((peak // 2, "f32[64,128]"),), hlo, "a compiler 1.0", False, 0.1)
