"""A step that PyTorch exports trains under `rhino.parallelize` as it does in PyTorch."""

from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("torchax") is None, reason="needs pip install -e '.[torch]'")
def test_an_exported_step_loses_as_in_pytorch():
    import torch_step  # noqa: PLC0415 - not everybody has PyTorch

    losses = torch_step.train(5)
    for theirs, ours in losses:
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert losses[-1][1] < losses[0][1] - 0.2
