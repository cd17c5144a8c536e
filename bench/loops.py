"""What a loop over layers costs: the same training steps unrolled and scanned, as planned for, and as XLA compiles them.

    python bench/loops.py [--models=gpt-24,gpt-72,llama-16,t5-12] [--targets=v100x8:8,h100x8:8] [--ops]
    python bench/loops.py --compiled=cpu,FILE [--ops]

Without `--compiled`: the predicted step of each form's own plan; with `--ops`, milliseconds of it by kind of op, where the forms differ.

With it: MiB that the kernels of a GPT of four layers (one device, batch 1) read and write in a step, in the program that XLA makes of it
for this machine's processor, or for the GPU that FILE describes, by what they do. FILE is a `GpuTargetConfigProto` as text; XLA's sources
have some under `xla/backends/gpu/target_config/specs`. No GPU is needed, but the packages `jax-cuda12-plugin` and `jax-cuda12-pjrt` of
jaxlib's version, and `nvidia-cuda-nvcc-cu12`. Nothing is tuned: every product is compiled by XLA itself where it can do that.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import quality
from hlo_bytes import KINDS, kernels
from jax.experimental import topologies
from planning import zoo
from search import machine

from rhino.passes.planner.plan_costs import plan_costs

zoo()  # puts the folder of the models on the path
import gpt  # noqa: E402
import llama  # noqa: E402
import t5  # noqa: E402
from training import ADAM, Model, abstract_state, export_step, jit_step  # noqa: E402

FORMS: Final = {"unrolled": False, "scanned": True}
MODELS: Final[Mapping[str, Callable[[int, bool], Model]]] = {
    "gpt": lambda layers, scan: gpt.model(gpt.GPTConfig(layers=layers, scan=scan)),
    "llama": lambda layers, scan: llama.model(
        llama.LlamaConfig(layers=layers, hidden=2048, heads=16, kv_heads=4, ffn=5632, vocab=32000, seq=1024, batch=16, scan=scan)
    ),
    "t5": lambda layers, scan: t5.model(
        t5.T5Config(layers=layers, hidden=1024, heads=16, ffn=4096, encoder_seq=512, decoder_seq=256, batch=16, scan=scan)
    ),
}
LEAST_MS: Final = 0.05


# As planned


def planned(name: str, target: str, scan: bool) -> tuple[float, dict[str, float]]:
    """Returns the predicted step of a model's own plan, and where it goes by kind of op; seconds."""
    kind, _, layers = name.partition("-")
    text = export_step(MODELS[kind](int(layers), scan)).encode()
    _, remarks = quality.search(text, f"{name}.mlir", target)
    costs = plan_costs(remarks.statistics)
    seconds = {"collectives": sum(found for _, found in costs.transfers)}
    for op, found in enumerate(costs.compute_s()):
        kind = costs.plan.graph.cls(op).name.removeprefix("stablehlo.")
        seconds[kind] = seconds.get(kind, 0.0) + found
    return remarks.statistics["answer"].cost, seconds


def compare_plans(names: Sequence[str], targets: Sequence[str], *, ops: bool) -> None:
    """Prints the steps of both forms of each model."""
    rows = [["model", "target", *(f"{form}, ms" for form in FORMS), "difference"]]
    tables = []
    for name in names:
        for target in targets:
            (flat_s, flat), (loop_s, loop) = (planned(name, target, scan) for scan in FORMS.values())
            rows.append([name, target, f"{1e3 * flat_s:.1f}", f"{1e3 * loop_s:.1f}", f"{loop_s / flat_s - 1:+.1%}"])
            tables.append(f"{name} on {target}, ms\n\n{_differences(flat, loop, 1e3, LEAST_MS)}")
    print(_table(rows), *(tables if ops else ()), sep="\n\n")


def _differences(flat: Mapping[str, float], loop: Mapping[str, float], scale: float, least: float) -> str:
    """Returns a table of what differs, the largest first, and of all together."""
    pairs = {key: (scale * flat.get(key, 0.0), scale * loop.get(key, 0.0)) for key in dict.fromkeys([*flat, *loop])}
    shown = {key: pair for key, pair in pairs.items() if abs(pair[1] - pair[0]) >= least}
    rows = sorted(shown.items(), key=lambda row: -abs(row[1][1] - row[1][0]))
    if len(shown) < len(pairs):
        rows.append(("others", _sums(pair for key, pair in pairs.items() if key not in shown)))
    rows.append(("all", _sums(pairs.values())))
    lines = [[key, f"{a:,.1f}", f"{b:,.1f}", f"{b - a:+,.1f}"] for key, (a, b) in rows]
    return _table([["", *FORMS, "difference"], *lines])


def _sums(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Returns the sums of all first and of all second numbers."""
    first, second = zip(*pairs, strict=True)
    return sum(first), sum(second)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table, numbers to the right."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' + ' ---: |' * (len(rows[0]) - 1)}", *lines[1:]])


# As compiled


def compiled(where: str, model: Model) -> str:
    """Returns the HLO text that XLA makes of a training step for this machine's processor ("cpu") or the GPU that a file describes."""
    device: Any = jax.devices("cpu")[0]
    options: dict[str, str | bool] = {}
    if where != "cpu":
        described = Path(where).read_text(encoding="utf-8")
        device = topologies.get_topology_desc(platform="cuda", target_config=described, topology="1x1x1").devices[0]
        options = {"xla_gpu_autotune_level": "0"}  # tuning runs kernels
    sharding = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), (abstract_state(model), model.batch))
    return str(jit_step(model, ADAM, 0).lower(*shapes).compile(options).as_text())


def moved(where: str, scan: bool) -> Counter[str]:
    """Returns the bytes that kernels move in a step, by kind."""
    found = Counter(dict.fromkeys(KINDS, 0))
    for kernel in kernels(compiled(where, gpt.model(gpt.GPTConfig(layers=4, batch=1, scan=scan)))):
        found[kernel.kind] += kernel.num_bytes
    return found


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--models", default="gpt-24,gpt-72,llama-16,t5-12", help="with the number of layers")
    parser.add_argument("--targets", default="v100x8:8,h100x8:8", help="clusters with their meshes")
    parser.add_argument("--ops", action="store_true", help="where the forms differ, by kind of op")
    parser.add_argument("--compiled", help="`cpu`, and files that describe GPUs: compare what XLA makes of them")
    options = parser.parse_args(argv)
    print(machine(), end="\n\n")
    if options.compiled:
        for where in options.compiled.split(","):
            flat, loop = (moved(where, scan) for scan in FORMS.values())
            print(f"{Path(where).stem}, MiB\n\n{_differences(flat, loop, 2**-20, 0.0)}\n")
        return 0
    compare_plans(options.models.split(","), options.targets.split(","), ops=options.ops)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
