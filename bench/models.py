"""Training steps of the example models as StableHLO, by name and at several sizes.

NAME            of examples/zoo.py: so small that XLA's rounding of buffers shows
NAME-mid        compiled by XLA in seconds, with tensors large enough that nothing small counts
NAME-real       of experts.py: layers of a real size, but few of them; GPT of more layers and in a loop, ViT, ResNet50
NAME-sixes      all sizes are multiples of six, for meshes that are no powers of two
NAME-staged     several layers, and a batch that micro-batches divide
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from experts import CASES

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"

Sizes = Mapping[str, Any]


def example(name: str) -> Any:  # noqa: ANN401 - a module
    """Returns a module of examples/ by name."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return import_module(name)


def zoo() -> Mapping[str, Any]:
    """Returns the models of examples/zoo.py by name."""
    models: Mapping[str, Any] = example("zoo").ZOO
    return models


def sized(preset: str, **sizes: Any) -> Any:  # noqa: ANN401 - fields of a configuration
    """Returns a model of examples/export.py: of a preset, or of its own configuration, but for these sizes."""
    entries = example("export").MODELS.items()
    entry = next(entry for name, entry in entries if preset == name or preset in entry.presets)
    return entry.model(replace(entry.presets.get(preset) or entry.config(), **sizes))


def step_of(model: Any) -> bytes:  # noqa: ANN401 - a `Model` of examples/training.py
    """Returns the training step of a model as StableHLO text."""
    text: str = example("training").export_step(model)
    return text.encode()


def zoo_step(name: str) -> bytes:
    """Returns the training step of a model of examples/zoo.py as StableHLO text."""
    return step_of(zoo()[name])


_GPT: Final = {"layers": 2, "hidden": 512, "heads": 8, "ffn": 2048, "vocab": 8192, "seq": 256, "batch": 8}
_MOE: Final = {"layers": 2, "hidden": 256, "heads": 8, "ffn": 1024, "experts": 8, "vocab": 4096, "seq": 256, "batch": 8}
_LLAMA: Final = {
    **{"layers": 2, "hidden": 512, "heads": 16, "kv_heads": 8},
    **{"ffn": 1024, "vocab": 4096, "seq": 256, "batch": 8},
}
_RESNET: Final = {"blocks": (1, 2, 1), "channels": 32, "width_factor": 2, "classes": 4096, "image": 64, "batch": 16}
_TOWERS: Final = {
    **{"features": 512, "feature_sizes": (1024, 512), "vocab": 4096, "seq": 64, "layers": 1},
    **{"hidden": 256, "heads": 8, "ffn": 1024, "embed": 128, "batch": 64},
}
_VGG: Final = {
    **{"channels": (32, 64, 128), "convs": (1, 2, 2), "hidden": 512, "classes": 4096},
    **{"image": 64, "batch": 16, "dropout": 0.0},
}

MID: Final[Mapping[str, tuple[str, Sizes]]] = {
    "bert-mid": ("bert", {"layers": 2, "hidden": 256, "heads": 8, "ffn": 1024, "vocab": 4096, "seq": 128, "batch": 16}),
    "gpt-mid": ("gpt", _GPT),
    "gpt-mid-scan": ("gpt", {**_GPT, "layers": 4, "scan": True}),
    "gpt-wide": ("gpt", {**_GPT, "layers": 3, "hidden": 1024, "heads": 16, "ffn": 4096, "seq": 128}),
    "llama-mid": ("llama", _LLAMA),
    "mlp-mid": ("mlp", {"sizes": (512, 2048, 2048, 1024), "batch": 256, "dropout": 0.0}),
    "moe-mid": ("moe", _MOE),
    "resnet-mid": ("resnet", _RESNET),
    "two-tower-mid": ("two-tower", _TOWERS),
    "vgg-mid": ("vgg", _VGG),
}
_SIXES: Final[Mapping[str, tuple[str, Sizes]]] = {
    "gpt-sixes": ("gpt", {"layers": 1, "hidden": 24, "heads": 6, "ffn": 48, "vocab": 48, "seq": 12, "batch": 12}),
    "mlp-sixes": ("mlp", {"sizes": (24, 48, 24), "batch": 12}),
}
STAGED: Final[Mapping[str, tuple[str, Sizes]]] = {
    "gpt-staged": ("gpt-tiny", {"layers": 4}),
    "gpt-scan-staged": ("gpt-tiny", {"layers": 6, "scan": True}),
    "llama-scan-staged": ("llama-tiny", {"layers": 6, "scan": True, "remat": True}),
    "moe-staged": ("moe-tiny", {"layers": 4}),
    "t5-staged": ("t5-tiny", {"layers": 2}),
    "unet-staged": ("unet-tiny", {}),
    "towers-staged": ("two-tower-tiny", {"pairs": True}),
}
_REAL: Final[Mapping[str, tuple[str, Sizes]]] = {
    **{f"{name}-real": (case.model, case.config) for name, case in CASES.items()},
    **{f"gpt-{layers}-real": ("gpt", {"layers": layers}) for layers in (4, 8, 24)},
    **{f"gpt-{layers}-scan-real": ("gpt", {"layers": layers, "scan": True}) for layers in (2, 4, 8, 24)},
    "vit-real": ("vit", {"layers": 4}),
    "resnet50-real": ("resnet", {}),
}


def sixes() -> Mapping[str, Any]:
    """Returns the models by name all of whose sizes are multiples of six."""
    return {name: sized(preset, **sizes) for name, (preset, sizes) in _SIXES.items()}


@cache
def step_text(name: str) -> bytes:
    """Returns the training step of a model by name as StableHLO text; the sizes stand at the top of this file."""
    if name in zoo():
        return zoo_step(name)
    preset, sizes = {**MID, **_REAL, **_SIXES, **STAGED}[name]
    return step_of(sized(preset, **sizes))


def exported(words: Sequence[str], form: str = "bytecode") -> bytes:
    """Returns the training step that examples/export.py writes for these words; the export leaves no memory behind."""
    command = [sys.executable, str(EXAMPLES / "export.py"), *words, f"--format={form}", "-o", "-"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
