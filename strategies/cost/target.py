"""What depends on the platform for which a compiler makes the programs: `cpu`, `gpu` and `tpu`.

Figures of devices and links are the cluster's; here is how programs use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rhino.ir.cluster.hardware import Device, Platform

Fusion = Literal["cheap", "products", "all"]
"""What a compiler computes in each kernel that reads it: what is cheap, that and products, or all that can be."""

JOINED: Final = frozenset({"all_reduce", "reduce_scatter", "all_gather"})
"""What is sent together with others of its kind.

Permutations and all-to-alls bring activations, few at a time; and of an all-to-all of a concatenation XLA:CPU exchanges
the parts.
"""

_SUMS: Final = ("reduce_scatter", "all_reduce")


@dataclass(frozen=True, slots=True)
class Target:
    """A platform and its compiler.

    `f32_products` says in what element type, and in how many passes, products of f32 are computed, by the precision of
    their operands: "default" (StableHLO's DEFAULT), "high" and "highest". `hidden_on` are the collectives of weights
    and gradients that go on while something is computed, by the beginnings of devices' kinds, and `hidden_with` by the
    options of the compiler that have them do so, but for the part `unhidden` of their time; those in `carries_on` may
    do so in the next trip of a loop.
    Collectives of the kinds in `joined` are sent together with others of their kind, where these need not wait for each
    other: by the compiler, at most `joined_bytes` of results at a time, or where `is_packed` before it sees them, small
    ones alone (strategies/cost/buckets.py). `hoists` says whether what is the same each time round a loop is computed
    before it, gathers of weights among it. `widens_halves` says whether arithmetic on bf16 and f16 is done, and kept in
    memory, in f32.

    Of memory: `is_depth_first` says whether ops run depth first from the results (strategies/memory/op_order.py).
    `slack` is the share of temporaries by which programs take more than is alive at a time: for gaps between buffers,
    and for what lies longer so that collectives go on while something is computed. `expands_selections` says whether a
    `select_and_scatter` is written out, by indices of what is selected, and `selects` whether a scatter that writes an
    element at most once is computed element by element: what is written where its index is, else what was there.
    `scatters_in_place` says whether scatters, and no ops element by element, write over what they read last;
    `reads_in_any_order` whether products read batches of rows and columns with their dims in any order.
    `fusion` says what is computed in one kernel (strategies/memory/fusion.py). `tile` are the rows and the columns to
    whose multiples two dims of a tensor are padded (strategies/memory/tiles.py). `updates_in_layouts` says whether
    arguments are copied to the layouts of their updates (strategies/memory/layout_copies.py).
    """

    platform: Platform
    f32_products: dict[str, tuple[str, int]] = field(default_factory=dict)
    hidden_on: dict[str, frozenset[str]] = field(default_factory=dict)
    hidden_with: dict[str, str] = field(default_factory=dict)
    joined: frozenset[str] = frozenset()
    joined_bytes: int = 0
    is_packed: bool = False
    unhidden: float = 0.0
    carries_on: frozenset[str] = frozenset()
    hoists: bool = False
    widens_halves: bool = False
    is_depth_first: bool = False
    slack: float = 0.1
    expands_selections: bool = True
    fusion: Fusion = "cheap"
    tile: tuple[int, int] = (1, 1)
    selects: bool = False
    scatters_in_place: bool = False
    reads_in_any_order: bool = False
    updates_in_layouts: bool = False

    def hidden(self, device: Device) -> frozenset[str]:
        """Returns which collectives of weights and gradients go on while a device computes."""
        by_kind = [kinds for kind, kinds in self.hidden_on.items() if device.kind.startswith(kind)]
        options = [option for option, value in device.compile_options if value is True]
        return frozenset().union(*by_kind, {self.hidden_with[one] for one in options if one in self.hidden_with})

    def are_hidden(self, device: Device, kinds: Sequence[str], *, is_sum: bool) -> list[bool]:
        """Says of the collectives of a path whether they go on while a device computes [steps].

        Where loops are pipelined, only the last reduction is, which is carried to the next trip: none of a path to what
        `is_sum` still, along other axes.
        """
        hidden = self.hidden(device)
        sums = [number for number, kind in enumerate(kinds) if kind in _SUMS]
        awaited = (sums if is_sum else sums[:-1]) if self.carries_on else []
        return [kind in hidden and number not in awaited for number, kind in enumerate(kinds)]

    def product(self, dtype: str, precision: str) -> tuple[str, int]:
        """Returns the element type that a matrix unit multiplies, and in how many passes, for operands of `dtype`."""
        return self.f32_products.get(precision, (dtype, 1)) if dtype == "f32" else (dtype, 1)

    def halves(self, dtype: str, precision: str) -> bool:
        """Says whether operands of `dtype` are converted to elements half as wide before they are multiplied.

        TF32 is f32 in memory, and operands of several passes are cut in several parts.
        """
        return dtype == "f32" and self.product(dtype, precision) == ("bf16", 1)

    def product_flops_per_s(self, device: Device, dtype: str, precision: str) -> float:
        """Returns the rate of large products of operands of an MLIR element type on a device."""
        unit, passes = self.product(dtype, precision)
        return device.matmul_flops_per_s(unit) / passes


TARGETS: Final[dict[Platform, Target]] = {
    # XLA:CPU of jaxlib 0.10.2 joins all all-reduces that do not wait for each other, of 120 MiB together as of 8 KiB,
    # and neither gathers nor reduce-scatters.
    "cpu": Target(
        "cpu",
        joined=frozenset({"all_reduce"}),
        joined_bytes=2**30,
        hoists=True,
        widens_halves=True,
        is_depth_first=True,
    ),
    # JAX's documentation of `default_matmul_precision`: TF32 on NVIDIA GPUs that have it (compute capability 8.0 on).
    # Collectives have `-start` and `-done` in what XLA:GPU of jaxlib 0.10.2 compiles; the thresholds of its combiners
    # are the defaults in xla/service/collective_utils.h, 30 MiB each. Reductions of gradients go on beside products,
    # in loops and outside, and a loop's last reduce-scatter in its next trip (FSDP and data parallelism of LLaMA's
    # layers, scanned and not, on h100x8). Of reduce-scatters along two axes the first is waited for. Of what could be
    # hidden in loops, schedules leave 5 to 7 % (LLaMA 8B on 64, 70B on 16x8; 2026-11-27). A scatter's operand has the
    # buffer of its result, and most loop fusions have buffers of their own though they could take over an operand's;
    # cuBLAS takes any two strides (`MatrixLayout::For`). What is predicted to be alive is 0.92
    # of what is assigned in the median of 84 plans, 0.91 to 0.98 of those of LLaMA 8B on 16 and 64 (2026-11-27).
    "gpu": Target(
        "gpu",
        f32_products={"default": ("tf32", 1), "high": ("tf32", 1)},
        hidden_on={"": JOINED},
        unhidden=0.05,
        joined=JOINED,
        joined_bytes=30 * 2**20,
        carries_on=frozenset({"reduce_scatter"}),
        slack=0.1,
        fusion="all",
        scatters_in_place=True,
        reads_in_any_order=True,
    ),
    # The same page: one pass of bf16 for the default, three for "high", six for "highest".
    # libtpu 0.0.51 fuses gathers, and nothing else, into what is computed meanwhile (`async_collective_fusion_config`):
    # for v5e, not for v5p and v6e (GPT, and three products in a row, 2026-11-24). JAX calls that chip "TPU v5 lite".
    # v5p and v6e have SparseCores, on which it runs collectives beside products where options say so.
    # XLA's page on tiled layouts: 8 x 128 elements. What JAX passes to a program lies in the most compact of layouts
    # (`ChooseCompactLayoutForShape`): f32[65536,8] takes 2 MiB, and not 32.
    # With a tenth for gaps, predicted / compiled peaks are 1.05 in the median of 169 plans and programs for v5e, v5p
    # and v6e (libtpu 0.0.52, 2026-11-28; bench/README.md).
    "tpu": Target(
        "tpu",
        f32_products={"default": ("bf16", 1), "high": ("bf16", 3), "highest": ("bf16", 6)},
        hidden_on={kind: frozenset({"all_gather"}) for kind in ("TPU v5e", "TPU v5 lite")},
        hidden_with={f"xla_tpu_enable_sparse_core_collective_offload_{kind}": kind for kind in sorted(JOINED)},
        joined=JOINED,
        is_packed=True,
        expands_selections=False,
        fusion="products",
        tile=(8, 128),
        selects=True,  # libtpu 0.0.51: the gradient of a loss by index is an `iota`, a comparison and a `select`
        updates_in_layouts=True,
    ),
}
"""The targets by platform."""
