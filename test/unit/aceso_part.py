"""A small directory of tables as Aceso's profiler writes them, of made-up numbers."""

from pathlib import Path
from typing import Final

OPS: Final = {
    "encoder-embedding": (100, 150, 0.01, 4, 20, 6, 1, 2),
    "enc-1st-layernorm": (20, 40, 4, 8, 0, 4, 0, 3),
    "enc-attention-qkv": (200, 400, 8, 16, 6, 12, 2, 5),
    "enc-attention-score": (150, 300, 16, 40, 0, 32, 8, 9),
    "enc-attention-softmax": (120, 200, 40, 40, 0, 32, 0, 9),
    "enc-attention-dropout": (110, 140, 40, 40, 0, 32, 0, 9),
    "enc-attention-context": (150, 300, 40, 8, 0, 4, 0, 6),
    "enc-post-MLP-dropout": (30, 30, 8, 4, 0, 6, 1, 2),
    "final-layernorm": (20, 40, 4, 4, 0, 4, 0, 2),
    "gpt-post-process": (500, 800, 4, 0, 20, 30, 10, 0),
}
"""Microseconds of both passes and megabytes, on one device for one example."""

COLUMNS: Final = (
    "op_name,forward-compute,backward-compute,input_size,output_size,weights,activations,fwd_reserved,bwd_reserved"
)


def write_tables(directory: Path, model: str = "gpt_1_3B", examples: tuple[int, ...] = (1, 2)) -> Path:
    """Writes what the ops take for so many examples, split over one device and two, in two forms; returns where."""
    for count in examples:
        for parts in (1, 2):
            for form in (0, 1):
                rows = [
                    f"{name},{','.join(f'{one:.3f}' for one in _scaled(figures, count, parts, form))}"
                    for name, figures in OPS.items()
                ]
                name = f"{model}_mbs{count}_tp{parts}_algo{form}.csv"
                (directory / name).write_text("\n".join([COLUMNS, *rows, ""]), encoding="utf-8")
    for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all"):
        lines = [
            "data_size(MB),time(ms)",
            *(f"{size},{0.05 + 0.02 * size}" for size in range(1, 90)),
            "90,1000000000.0",
        ]
        (directory / f"prim_{model}_{kind}_2gpus.csv").write_text("\n".join(lines), encoding="utf-8")
    (directory / "p2p_intra_node.csv").write_text("1,2,4,8\n10.0, 20.0, 30.0, 40.0\n", encoding="utf-8")
    return directory


def _scaled(figures: tuple[float, ...], count: int, parts: int, form: int) -> list[float]:
    forward, backward, comes, goes, weights, *others = figures
    pace = count / parts * (1.1 if parts > 1 else 1.0) * (1 + 0.05 * form)
    return [
        forward * pace,
        backward * pace,
        comes * count,
        goes * count,
        weights / parts,
        *(one * count for one in others),
    ]
