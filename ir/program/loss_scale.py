"""The loss scale of a step in f16: two arguments that it takes and gives, and how one follows from the other.

Source    Micikevicius et al., "Mixed Precision Training" (2018), section 3.2; the numbers are those of PyTorch's
          `GradScaler`, JMP's and Flax's, but for the first scale, which is 2**16 in PyTorch and Flax.
"""

from __future__ import annotations

from typing import Final

LOSS_SCALE: Final = "rhino.loss_scale"
"""On an argument of the entry: which part of the loss scale it is, `SCALE` or `GOOD_STEPS`."""

SCALE, GOOD_STEPS = "scale", "good_steps"
"""By what the loss is multiplied, in f32; how many steps in a row had finite gradients since that changed, in i32."""

PARTS: Final = (SCALE, GOOD_STEPS)

NAME: Final = "rhino_loss_scale"
"""What the arguments are called, each with its part behind a dot."""

FIRST: Final = {SCALE: 2.0**15, GOOD_STEPS: 0}
"""What training starts from, by part."""

FACTOR: Final = 2.0
"""By what the scale is multiplied behind `PERIOD` good steps, and divided behind a step that is not."""

PERIOD: Final = 2000

RANGE: Final = (2.0**-126, 2.0**126)
"""The least and the largest scale: f32 has normal numbers for both, and for what unscales."""
