"""What a vocabulary costs that devices do not divide: as it is, padded by `rhino-pad`, and padded in the model.

    python bench/pad.py [--vocab=50257] [--layers=4] [--hidden=1024] [--batch=8] [--seq=1024] [--cluster=v100x8]

A training step of GPT with a tied embedding, planned for a cluster. Printed are how the embedding is stored, the payload of the local
program's collectives per step and device and how many there are, the predicted time and peak of memory, and the masks that keep padding out
of answers.

Exit code: 1 if the padded step takes longer than the one that is not, by prediction.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planning import zoo

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.collectives import module_stats
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.base import Remarks
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.textual_pipelines import build_pass_manager


@dataclass(frozen=True, slots=True)
class Row:
    """What is printed of one way to store the embedding."""

    name: str
    stored: str
    sent: str
    step_s: float
    peak_bytes: float
    masks: int


def planned(name: str, text: bytes, cluster: str, pad: str) -> Row:
    """Returns what a step comes to, whose arguments named `pad` are padded."""
    module, remarks = read_module(text, name, make_context()), Remarks(name)
    build_pass_manager(f'auto-shard{{cluster={cluster} pad="{pad}"}}', module.context, remarks).run(module.operation)
    entry = entry_function(module)
    sharding = str(boundary_attributes(entry, "arg")[0][SHARDING])
    total = module_stats(localized_copy(module, name)).total
    masks = next((int(one.text.split()[0]) for one in remarks.items if " masks keep padding out" in one.text), 0)
    answer = remarks.statistics["answer"]
    stored = f"{'x'.join(map(str, entry.type.inputs[0].shape))} {sharding[sharding.index('[') : -1]}"
    sent = f"{format_bytes(total.num_bytes)} in {total.num}"
    return Row(name, stored, sent, answer.cost, answer.peak_bytes, masks)


def rows(options: argparse.Namespace) -> list[Row]:
    """Returns a row for each way."""
    zoo()  # lets the next lines find the models
    import gpt  # noqa: PLC0415
    from training import export_step  # noqa: PLC0415

    def step(vocab: int) -> bytes:
        sizes: dict[str, Any] = {name: getattr(options, name) for name in ("layers", "hidden", "batch", "seq")}
        return export_step(gpt.model(gpt.GPTConfig(heads=8, ffn=4 * options.hidden, vocab=vocab, **sizes))).encode()

    devices = load_cluster(options.cluster).num_devices
    odd, even = step(options.vocab), step(-(-options.vocab // devices) * devices)
    ways = (("as it is", odd, ""), ("padded", odd, "embed:0"), ("in the model", even, ""))
    return [planned(name, text, options.cluster, pad) for name, text, pad in ways]


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    for name, default in (("vocab", 50257), ("layers", 4), ("hidden", 1024), ("batch", 8), ("seq", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cluster", default="v100x8", help="a preset's name or a cluster file")
    found = rows(parser.parse_args(argv))
    print("| vocabulary | embedding | sent | step | peak | masks |\n| --- | --- | ---: | ---: | ---: | ---: |")
    for one in found:
        words = (one.name, one.stored, one.sent, format_seconds(one.step_s), format_bytes(int(one.peak_bytes)), str(one.masks))
        print(f"| {' | '.join(words)} |")
    whole, padded, _ = found
    return int(padded.step_s > whole.step_s)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
