"""What a fused projection sends: in separate weights, fused, and fused and seen as blocks.

    python bench/strides.py [--layers=2] [--hidden=1024] [--seq=512] [--cluster=v100x8] [--free]

Training steps of batch 1 on eight devices. Their weights are pinned as Megatron splits them: a projection into heads or hidden features
along what it gives, one back along what it takes; everything else is the search's to choose. With `--free` all is. Counted is what stands
in each device's program (`rhino-localize`): payload per step and device, and in how many collectives; beside it the predicted time of a
step. `fused` splits the fused weight as it is, a device having a part of the queries alone; `viewed` splits each of its blocks, after
`rhino-materialize-strides`.

Exit code: 1 if a viewed model with pinned weights sends more bytes than the one with separate weights.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from phases import auto_shard
from planning import Planned, zoo

from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.boundary import boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.locations import name_of
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.mlir.shardings import MESH_NAME, SHARDING
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.base import Remarks
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.textual_pipelines import build_pass_manager

NUM_DEVICES: Final = 8
COLUMNS: Final = ("separate", "fused", "viewed")

_AXIS: Final = "x"
_WEIGHT: Final = re.compile(r"state\.params\[.*\['(\w+)'\]$")
_SPLIT_DIM: Final = {**dict.fromkeys(("q", "k", "v", "qkv", "gate", "up", "gate_up"), -1), **dict.fromkeys(("out", "down"), -2)}
"""The dim along which Megatron splits a weight, from the end: 4.1 and 4.2 of Megatron-LM (Shoeybi et al., 2019), for stacked layers too."""


def viewed(text: bytes, name: str) -> ir.Module:
    """Returns a training step whose fused weights are seen as blocks that the devices divide."""
    return _run(text, name, f"rhino-normalize,rhino-materialize-strides{{parts={NUM_DEVICES}}}")


def planned(text: bytes, name: str, cluster: str, *, views: bool, pinned: bool) -> Planned:
    """Returns a training step planned for a cluster: first seen as blocks if `views`, and with its weights pinned if `pinned`."""
    module = viewed(text, name) if views else _run(text, name, "rhino-normalize")
    if pinned:
        pin(module)
    remarks = Remarks(name)
    build_pass_manager(auto_shard(cluster), module.context, remarks).run(module.operation)
    return Planned(module, localized_copy(module, name), remarks.statistics["plan"], remarks.statistics["answer"])


def pin(module: ir.Module) -> None:
    """Gives the module a mesh, and each weight that has a place in tensor parallelism its sharding."""
    with module.context, ir.Location.unknown():
        mesh = ir.Module.parse(f'sdy.mesh @{MESH_NAME} = <["{_AXIS}"={NUM_DEVICES}]>').body.operations[0]
        mesh.operation.clone(ip=ir.InsertionPoint.at_block_begin(module.body))
        entry = entry_function(module)
        attributes = boundary_attributes(entry, "arg")
        for argument, given in zip(entry.arguments, attributes, strict=True):
            found = _WEIGHT.search(name_of(argument.location))
            if found and found[1] in _SPLIT_DIM:
                dims = ["{}"] * len(argument.type.shape)
                dims[_SPLIT_DIM[found[1]]] = f'{{"{_AXIS}"}}'
                given[SHARDING] = ir.Attribute.parse(f"#sdy.sharding<@{MESH_NAME}, [{', '.join(dims)}]>")
        set_boundary_attributes(entry, "arg", attributes)


def _run(text: bytes, name: str, pipeline: str) -> ir.Module:
    module = read_module(text, name, make_context())
    build_pass_manager(pipeline, module.context).run(module.operation)
    return module


def cases(layers: int, hidden: int, seq: int) -> dict[str, tuple[bytes, bytes]]:
    """Returns the training steps of each model, with separate and with fused weights, by its name."""
    zoo()  # lets the next lines find the models
    import gpt  # noqa: PLC0415
    import llama  # noqa: PLC0415
    from training import export_step  # noqa: PLC0415

    plain = gpt.GPTConfig(layers, hidden, heads=NUM_DEVICES, ffn=4 * hidden, vocab=8192, seq=seq, batch=1)
    gated = llama.LlamaConfig(layers, hidden, NUM_DEVICES, kv_heads=NUM_DEVICES, ffn=4 * hidden, vocab=8192, seq=seq, batch=1)
    found = {}
    for suffix, scan in (("", False), ("-scan", True)):
        gpts = (gpt.model(replace(plain, scan=scan, fused_qkv=fused)) for fused in (False, True))
        llamas = (llama.model(replace(gated, scan=scan, fused_gate_up=fused)) for fused in (False, True))
        for name, models in (("gpt", gpts), ("llama", llamas)):
            separate, fused = (export_step(model).encode() for model in models)
            found[name + suffix] = separate, fused
    return found


def plans(steps: tuple[bytes, bytes], name: str, cluster: str, *, pinned: bool) -> list[Planned]:
    """Returns the plan of each column."""
    separate, fused = steps
    return [planned(text, name, cluster, views=views, pinned=pinned) for text, views in ((separate, False), (fused, False), (fused, True))]


def _cell(plan: Planned) -> str:
    total = plan.localized.total
    return f"{format_bytes(total.num_bytes)} in {total.num}, {format_seconds(plan.answer.cost)}"


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--cluster", default="v100x8", help="a preset's name or a cluster file, of eight devices")
    parser.add_argument("--free", action="store_true", help="pin nothing")
    options = parser.parse_args(argv)
    print(f"| model | {' | '.join(COLUMNS)} |\n| --- |{' ---: |' * len(COLUMNS)}")
    worse = []
    for name, steps in cases(options.layers, options.hidden, options.seq).items():
        separate, fused, seen = plans(steps, name, options.cluster, pinned=not options.free)
        print(f"| {name} | {' | '.join(map(_cell, (separate, fused, seen)))} |", flush=True)
        if not options.free and seen.localized.total.num_bytes > separate.localized.total.num_bytes:
            worse.append(name)
    if worse:
        print(f"\nviewed sends more than separate: {', '.join(worse)}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
