"""The seconds of a compiled step: what the kernels that a compiler made take, in the order in which it runs them.

A kernel takes as long as the slower of its products and its operands and results in the device's memory; one that the
program brings along, as a Pallas kernel, takes as long as what it computes and fetches. A copy that is asynchronous, by
which XLA:TPU fetches from there beforehand, goes on while kernels leave the memory idle, and is waited for where its
`-done` stands. A collective is on the wire once those before it are done. One that is asynchronous is waited for at its
`-done`, too, so what is computed between hides it; so does what goes to host memory, or comes from there, one after the
other each way. Loops take the trips of their body. The rates are
those of the cluster, the figures of kernels and collectives the compiler's own: nothing here is a guess at what it
fuses, combines, overlaps or converts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rhino.ir.cluster.cluster import MeshAxis, axis_of_groups
from rhino.ir.cluster.hardware import Cluster
from rhino.ir.graph.collective_stats import Count
from rhino.ir.graph.rules import CallWork
from rhino.ir.hlo.collectives import Collective, awaited_channel, channel_of, collectives_of
from rhino.ir.hlo.kernels import FREE, Product, host_transfer, kernel_config, kernel_of
from rhino.ir.hlo.text import Computation, Instruction, Program, parse_hlo
from rhino.strategies.cost.cost_model import CostModel, collective_s
from rhino.strategies.cost.target import Target

_MLIR_TYPES: Final = {"pred": "i1", **{f"{sign}{bits}": f"i{bits}" for sign in "su" for bits in (4, 8, 16, 32, 64)}}


@dataclass(frozen=True, slots=True)
class Sent:
    """Collectives of one kind, element type on the wire and way to wait for them; seconds are those on the wire."""

    kind: str
    dtype: str
    is_async: bool
    count: Count
    seconds: float


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """Seconds of one device's step: its kernels, and what it waits for collectives and transfers from and to the host.

    `flops` and `num_bytes` are of its kernels.
    """

    kernels_s: float
    exposed_s: float
    flops: float
    num_bytes: float
    collectives: tuple[Sent, ...]

    @property
    def step_s(self) -> float:
        """The step."""
        return self.kernels_s + self.exposed_s


def compiled_step(
    text: str,
    cluster: Cluster,
    target: Target,
    unseen: Sequence[int] = (),
    kernel_work: Callable[[str], CallWork | None] = lambda _: None,
) -> CompiledStep:
    """Returns what a compiled module takes on the first devices of a cluster, from its scheduled HLO text.

    `unseen` are bytes of transfers between host and device that the text does not have: nothing hides these.
    `kernel_work` reads from the configuration of a call what a kernel does that the program brings along.
    """
    program = parse_hlo(text)
    walk = _Walk(program, cluster, target, kernel_work)
    run = walk.computation(program.entry)
    sent = tuple(
        Sent(*key, Count(num, num_bytes), seconds) for key, (num, num_bytes, seconds) in sorted(run.sent.items())
    )
    model = CostModel(cluster.device, ())
    exposed_s = run.now - run.kernels_s + sum(model.host_s(num_bytes) for num_bytes in unseen)
    return CompiledStep(run.kernels_s, exposed_s, run.flops, run.num_bytes, sent)


_Key = tuple[str, str, bool]


@dataclass(slots=True, eq=False)
class _Run:
    """Where a computation's run stands: the time, until when its collectives are on the wire, and what was done.

    `host_free` is until when something is on its way from the host, and to it.

    Of the seconds of memory that asynchronous copies take, `asked_s` were begun and `copied_s` are over; `copies` has
    what was asked up to each.
    """

    now: float = 0.0
    wire_free: float = 0.0
    host_free: dict[bool, float] = field(default_factory=dict)
    asked_s: float = 0.0
    copied_s: float = 0.0
    copies: dict[str, float] = field(default_factory=dict)
    kernels_s: float = 0.0
    flops: float = 0.0
    num_bytes: float = 0.0
    sent: dict[_Key, tuple[int, int, float]] = field(default_factory=dict)
    finish: dict[str, float] = field(default_factory=dict)

    def compute(self, seconds: float, memory_s: float) -> None:
        """Passes the time of a kernel, which uses the memory for a part of it."""
        self.now += seconds
        self.kernels_s += seconds
        self.copied_s = min(self.asked_s, self.copied_s + seconds - memory_s)

    def pass_until(self, time: float) -> None:
        """Passes the time until then, in which copies go on."""
        self.copied_s = min(self.asked_s, self.copied_s + max(0.0, time - self.now))
        self.now = max(self.now, time)

    def copy(self, name: str, seconds: float) -> None:
        """Begins an asynchronous copy, behind those before it."""
        self.asked_s += seconds
        self.copies[name] = self.asked_s

    def wait_for_copy(self, name: str) -> None:
        """Waits for a copy: what is left of it is the time of a kernel that uses the memory alone."""
        if (left := self.copies.get(name, 0.0) - self.copied_s) > 0:
            self.compute(left, 0.0)

    def add(self, other: _Run, times: int) -> None:
        """Passes the time of a computation that is run so many times."""
        self.now = max(self.now, self.wire_free) if other.sent else self.now
        self.now += times * max(other.now, other.wire_free)
        self.wire_free = max(self.wire_free, self.now) if other.sent else self.wire_free
        self.kernels_s += times * other.kernels_s
        self.flops += times * other.flops
        self.num_bytes += times * other.num_bytes
        for key, (num, num_bytes, seconds) in other.sent.items():
            self.count(key, times * num, times * num_bytes, times * seconds)

    def count(self, key: _Key, num: int, num_bytes: int, seconds: float) -> None:
        """Counts collectives."""
        before = self.sent.get(key, (0, 0, 0.0))
        self.sent[key] = (before[0] + num, before[1] + num_bytes, before[2] + seconds)


def _multiplies(inside: Computation) -> bool:
    """Says whether a computation has a product of its own: XLA:TPU fuses parts of collectives into such."""
    return any(op.opcode in ("dot", "convolution") for op in inside.values())


@dataclass(eq=False)
class _Walk:
    program: Program
    cluster: Cluster
    target: Target
    kernel_work: Callable[[str], CallWork | None]
    done: dict[str, _Run] = field(default_factory=dict)
    axes: dict[bytes, MeshAxis] = field(default_factory=dict)

    def computation(self, name: str) -> _Run:
        """Returns how one run of a computation goes."""
        if name not in self.done:
            body, run, begun = self.program.computations[name], _Run(), collectives_of(self.program, name)
            for own, op in body.items():
                if op.opcode not in FREE:
                    self.step(run, own, op, body, begun.get(own, ()))
            self.done[name] = run
        return self.done[name]

    def step(self, run: _Run, name: str, op: Instruction, body: Computation, begun: Sequence[Collective]) -> None:
        """Passes the time of one instruction, at which some collectives begin."""
        for collective in begun:
            self.begin(run, name, collective)
        match op.opcode:
            case "while":
                trips = self.program.trips(op)
                run.add(self.computation(self.program.body(op)), 1 if trips is None else trips)
            case "conditional":
                branches = [self.computation(one) for one in self.program.branches(op)]
                run.add(max(branches, key=lambda one: one.now), 1)
            case "call":
                run.add(self.computation(self.program.called(op)[0]), 1)
            case opcode if opcode.endswith("-update"):
                run.finish[name] = max(run.finish.get(one, run.now) for one in (name, *op.operands))
            case opcode if opcode.endswith("-done"):
                for copy in op.operands:
                    run.wait_for_copy(copy)
                self.wait(run, [*op.operands, channel_of(op)])
            case "recv":
                pass  # its `-done` waits for the `send` of its channel
            case "async-start" if not op.operands:
                pass  # a SparseCore loads the program that its `-update` starts
            case _:
                awaited = awaited_channel(self.program, op)
                if not (begun or awaited) or _multiplies(self.program.inside(op)):
                    self.kernel(run, name, op, body)
                self.wait(run, [awaited])

    def kernel(self, run: _Run, name: str, op: Instruction, body: Computation) -> None:
        """Passes the time of a kernel, or begins a copy or a transfer."""
        if (transfer := host_transfer(op, body)) is not None:
            begin = max(run.now, run.host_free.get(transfer.to_host, 0.0))
            there = begin + CostModel(self.cluster.device, ()).host_s(transfer.num_bytes)
            run.host_free[transfer.to_host] = run.finish[name] = there
            if op.opcode == "copy":
                run.pass_until(there)
            return
        if (config := kernel_config(op)) and (work := self.kernel_work(config)) is not None:
            run.flops += work.product_flops
            run.num_bytes += work.bytes
            memory_s = work.bytes / self.cluster.device.memory_bytes_per_s
            run.compute(CostModel(self.cluster.device, ()).call_s(work) + (self.cluster.device.op_s or 0.0), memory_s)
            return
        kernel, device = kernel_of(self.program, op, body), self.cluster.device
        memory_s = kernel.num_bytes / device.memory_bytes_per_s
        run.flops += sum(product.flops for product in kernel.products)
        run.num_bytes += kernel.num_bytes
        if op.opcode.endswith("-start") and not kernel.products:
            run.copy(name, memory_s)
        else:
            products_s = sum(self.product_s(product) for product in kernel.products)
            run.compute(max(products_s, memory_s) + (device.op_s or 0.0), memory_s)

    def begin(self, run: _Run, name: str, collective: Collective) -> None:
        """Puts a collective on the wire, and waits for it if that is its way."""
        seconds = collective_s(self.axis(collective), collective.kind, collective.num_bytes)
        run.count((collective.kind, collective.dtype, collective.is_async), 1, collective.num_bytes, seconds)
        run.wire_free = max(run.now, run.wire_free) + seconds
        if collective.is_async:
            run.finish |= {one: run.wire_free for one in (name, collective.channel) if one}
        else:
            run.pass_until(run.wire_free)

    def wait(self, run: _Run, names: Iterable[str]) -> None:
        """Waits for collectives, by the names of their first instructions, or by channel."""
        run.pass_until(max([0.0, *(run.finish[name] for name in names if name in run.finish)]))

    def axis(self, collective: Collective) -> MeshAxis:
        """Returns the links that a collective uses."""
        groups = collective.groups
        key = groups.tobytes() + bytes(groups.shape[1])
        if key not in self.axes:
            ordered = groups if collective.kind == "collective_permute" else groups.copy()
            ordered.sort(axis=1)
            self.axes[key] = axis_of_groups(self.cluster, ordered, collective.kind)
        return self.axes[key]

    def product_s(self, product: Product) -> float:
        """Returns the seconds of a product."""
        dtype = _MLIR_TYPES.get(product.dtype, product.dtype)
        return product.flops / self.target.product_flops_per_s(self.cluster.device, dtype, product.precision)
