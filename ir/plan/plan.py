"""A plan: how a training step runs on many devices, and what that costs.

It is for one program and one cluster, in one stage or in several.

Every plan says what it is of, how arguments and results are placed, and what is predicted. The rest it says in one of
two ways:

- `sharding`: shardings on the ops of the normalized program, which stock XLA partitions and compiles. The program is
  not in the plan.
- `execution`: a static list of instructions with the programs that they run, one or several to a rank. No planner is
  needed to run it.

Arguments, results and ops go by the user's names. Rows that differ in the numbers of their names alone are one (`[*]`):
layers, mostly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from rhino.ir.cluster.file import parse_cluster
from rhino.ir.cluster.hardware import Cluster
from rhino.ir.cluster.mesh import Mesh, option_of_meshes
from rhino.ir.cluster.placement import Devices, as_placed, num_reached, placement_text
from rhino.ir.graph.blocks import View
from rhino.ir.graph.graph import DEVICE, HOST, MemoryKind
from rhino.ir.graph.spec import dim_axes, partial_axes
from rhino.ir.plan.instructions import Feed, Step
from rhino.ir.units import format_bytes

_NUMBER: Final = re.compile(r"\[\d+(?::\d+)?\]|(?<=[A-Za-z_])\d+(?=\b|_)")

Dims = tuple[tuple[str, ...], ...]
"""The axes that split each dim of a tensor, outermost first."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument or result by its pytree path, on the mesh of stage rank `rank`.

    `kind` is dtype and global shape, as `float32[8,16]`. `dims` is of the tensor as it is stored, which for a typed key
    has dims behind the key's own. `alias` is the result that is placed as an argument is, and is that argument in the
    next step; None on a result. `is_kept` says that such an argument is not donated, so the caller keeps it. `padded`
    is its shape with zeros behind its own elements, and `viewed` that in which it is stored, some dims seen as blocks;
    `interleaved` are the parts and blocks of those dims whose elements change their order (`rhino.ir.graph.blocks`).
    Each is empty where that changes nothing. `num_bytes` are those that are stored, on all devices of the rank together
    where nothing is replicated. Of a leaf that lies in pieces a tensor has `rows`, from the first to behind the last;
    its path ends with them, as in `params['up'][0:2]`.
    `memory` is where it lies between steps.
    """

    path: str
    kind: str
    dims: Dims
    num_bytes: int
    rank: int = 0
    alias: int | None = None
    padded: tuple[int, ...] = ()
    is_kept: bool = False
    rows: tuple[int, int] | None = None
    viewed: tuple[int, ...] = ()
    memory: MemoryKind = DEVICE
    interleaved: tuple[tuple[int, ...], ...] = ()

    @property
    def leaf(self) -> str:
        """The pytree path of the leaf that it is, or is some rows of."""
        return self.path if self.rows is None else self.path.removesuffix(rows_text(self.rows))

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return kind_shape(self.kind)

    @property
    def dtype(self) -> str:
        """The element type, by JAX's name where a function was planned, by MLIR's where a module was."""
        return self.kind.partition("[")[0]

    @property
    def words(self) -> str:
        """The kind, and the shape that `dims` are of where some dims are stored as blocks."""
        return f"{self.kind} as {'x'.join(map(str, self.viewed))}" if self.viewed else self.kind

    @property
    def num_key_dims(self) -> int:
        """How many dims a typed key's words have behind the key's own; 0 for any other tensor."""
        return 0 if self.viewed else len(self.dims) - len(self.shape)


@dataclass(frozen=True, slots=True)
class Source:
    """The program that a plan is for.

    It is known by its hashes as traced and as normalized, and by how many ops of each kind it had.

    Of a plan whose passes ran one by one only the first hash is known; `normal_sha256` and `ops` are empty then.
    """

    function: str
    sha256: str
    normal_sha256: str = ""
    ops: Mapping[str, int] = ()  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Cost:
    """Collectives that are alike: `count` of them in a step.

    `num_bytes` is their payload per device and `seconds` their time, of all of them together.

    `tensor` is what is moved and `reader` for what (empty: it is stored so), by the user's names; `[*]` stands for
    numbers that differ. `line` is where that stands in the user's source, as `model.py:41`, where it is known.
    """

    kind: str
    count: int
    num_bytes: int
    seconds: float
    tensor: str
    reader: str
    line: str

    @property
    def place(self) -> str:
        """What is moved, and for what."""
        return f"{self.tensor} for {self.reader}" if self.reader else f"{self.tensor}, where it arises"


@dataclass(frozen=True, slots=True)
class Work:
    """Ops that are alike: `count` executions in a step, each shared by `shares` devices, in the program's scope `name`.

    `compute_s` are their seconds together on a device, `collectives_s` those of the collectives that they wait for or
    that finish them, `num_bytes` what their results take there, all together. `how` is how operands are needed and
    results come.
    """

    kind: str
    name: str
    line: str
    count: int
    shares: int
    how: str
    compute_s: float
    collectives_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is saved for the backward pass in host memory: `count` values, `num_bytes` of a device's parts of them.

    `seconds` are those of all transfers of a step, both ways.
    """

    count: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PeakTensor:
    """Tensors that are alike and alive at the peak: `count` of them, with their bytes on a device together."""

    name: str
    kind: str
    count: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes alive on a device over the schedule of a step.

    `curve` has a point (time, bytes) where the largest bytes of each part of the schedule are first reached, and the
    peak; times count from 0 to `num_times`. `alive` is what is there at the peak, the largest first.
    """

    num_times: int
    peak_time: int
    peak_op: str
    curve: tuple[tuple[int, int], ...]
    alive: tuple[PeakTensor, ...]


@dataclass(frozen=True, slots=True)
class Annotations:
    """What stands on the ops of the normalized program: op `i` carries the attributes `words[ops[i]]`."""

    words: tuple[str, ...]
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sharding:
    """One program by its shardings: `form` says what is compiled, `annotations` how its ops run.

    `compute_s` and `communication_s` are of ops and of collectives in a step; what is left of the step is to launch the
    program, to cut blocks, and to bring the arrays of a caller into views and back. `works`, `costs` and `memory` say
    where time and memory go. `views` has the values of the normalized program that are stored as blocks, by number, and
    how each of their dims is; the annotations are of the program with them.
    waiting: Waiting | None = None
    """

    form: str
    compute_s: float
    communication_s: float
    works: tuple[Work, ...]
    costs: tuple[Cost, ...]
    memory: Memory
    annotations: Annotations
    views: Mapping[int, View] = field(default_factory=dict)
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """What the executor runs: a step's instructions, and its programs' texts by their names in the step.

    `run_s` and `temp_bytes` are predicted of a run of each program, on a device; transfers between ranks take
    `link_latency_s` and their bytes over `link_bytes_per_s`. Of the leaves `nonnegative_arguments`, by number, no
    element may be drawn below 0.
    """

    step: Step
    modules: Mapping[str, str]
    run_s: tuple[float, ...]
    temp_bytes: tuple[int, ...]
    link_latency_s: float
    link_bytes_per_s: float
    nonnegative_arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """What else was looked at: what its best plan takes, or why there is none (`step_s` is None then).

    `is_exact` says that the step is that of its programs, and no estimate. No plan of its kind takes less than
    `at_least_s`.
    """

    what: str
    step_s: float | None
    at_least_s: float
    is_exact: bool
    why: str


AS_BLOCKS: Final = "some dims stored as blocks"
PLAIN: Final = "no dim stored as blocks"
"""What else was looked at of a step that can be stored either way."""


@dataclass(frozen=True, slots=True)
class Autotuning:
    """How stages, mesh, micro-batches and rematerialization were found.

    It names the strategy, and the number of plans that it made for each of them.
    """

    found_by: str
    num_planned: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a step is predicted to take. `at_least_s`: nothing that was searched takes less (0 where no bound is known).

    `peak_bytes` are of a device of each rank. `kept_bytes` of them, by rank too, are state that the caller keeps beside
    the new one; what is planned has `budget_bytes` less these.
    """

    step_s: float
    at_least_s: float
    peak_bytes: tuple[int, ...]
    budget_bytes: int
    kept_bytes: tuple[int, ...]

    @property
    def largest_peak_bytes(self) -> int:
        """The peak of a device of the rank that holds most."""
        return max(self.peak_bytes)


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A plan that was compiled for the cluster's devices to be compared.

    `name` says where it comes from: the search, or an expert's plan that the search completed. `form` is that of the
    program. Where it does not compile, `why` says so, and the compiled figures are None. It was searched for within
    `within_bytes`, under what the expert's plan `seed` says of arguments, if one does.
    """

    name: str
    form: str
    predicted_s: float
    predicted_bytes: int
    compiled_s: float | None
    compiled_bytes: int | None
    why: str
    within_bytes: int
    seed: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a compiler made of several plans of one program; `chosen` is the number of the one that was taken."""

    compiler: str
    plans: tuple[CompiledPlan, ...]
    chosen: int

    @property
    def best(self) -> CompiledPlan:
        """The one that was taken."""
        return self.plans[self.chosen]


SHARD: Final = "shard"
"""What is searched for: shardings, and of a step in stages what the user leaves open of it."""

AUTOTUNE: Final = "autotune"
"""What is searched for: stages, mesh, micro-batches, schedule and rematerialization too."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for beside the `options` of a plan; what is None or empty was left open.

    `search` is `SHARD` or `AUTOTUNE`. `mesh` is as it was given, `remat` are the shares of the activation stash that
    are recomputed; with `recomputes` each stage recomputes what its memory asks for. A `strategy` looks at `candidates`
    plans at most.
    """

    search: str = SHARD
    mesh: str = ""
    stages: int | None = None
    micro_batches: int | None = None
    schedule: str = ""
    remat: tuple[float, ...] = ()
    budget_bytes: int | None = None
    strategy: str = ""
    candidates: int | None = None
    replicas: str = ""
    recomputes: bool = False

    def words(self) -> dict[str, str]:
        """Returns what was asked for as texts, by name."""
        remat = "auto" if self.recomputes else ";".join(f"{share:g}" for share in self.remat)
        budget = "" if self.budget_bytes is None else format_bytes(self.budget_bytes)
        found = {"search": self.search, "mesh": self.mesh, "stages": self.stages, "micro-batches": self.micro_batches}
        found |= {"schedule": self.schedule, "remat": remat, "budget": budget}
        found |= {"replicas": self.replicas, "strategy": self.strategy, "candidates": self.candidates}
        return {name: str(one) for name, one in found.items() if one not in ("", None)}


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan. `cluster` is the text of the cluster's file, `meshes` are those of its ranks [ranks].

    `devices` are those of each rank in the cluster, as a step has them (`rhino.ir.plan.instructions`).

    `request` and `options` are what was asked for: the latter of the passes beside cluster, mesh, budget and what
    follows from the plan itself.
    `schedule` is empty where there is one stage. `shares` are the micro-batches of each replica, where ranks are
    replicas; an argument that several are fed has the first of them as its rank. `compared` is there where the
    target's compiler chose.
    """

    source: Source
    cluster: tuple[str, ...]
    meshes: tuple[Mesh, ...]
    num_stages: int
    num_micro_batches: int
    schedule: str
    options: Mapping[str, str]
    versions: Mapping[str, str]
    predicted: Predicted
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    alternatives: tuple[Alternative, ...] = ()
    autotuning: Autotuning | None = None
    sharding: Sharding | None = None
    execution: Execution | None = None
    request: Request = Request()
    compared: Comparison | None = None
    shares: tuple[int, ...] = ()
    devices: Devices = ()

    @property
    def mesh(self) -> Mesh:
        """The mesh of a plan in one program, or of replicas, which all have the same."""
        assert len(set(self.meshes)) == 1, "ranks of unlike meshes are asked one by one"
        return self.meshes[0]

    @property
    def mesh_option(self) -> str:
        """The meshes as an option has them: that of all ranks, or those of each, as `x=4;x=2`."""
        return option_of_meshes(self.meshes if len(set(self.meshes)) > 1 else self.meshes[:1])

    @property
    def num_ranks(self) -> int:
        """On how many ranks the plan runs."""
        return len(self.meshes)

    @property
    def num_devices(self) -> int:
        """How many devices the plan runs on."""
        return sum(mesh.num_devices for mesh in self.meshes)

    @property
    def num_reached(self) -> int:
        """How many of the cluster's first devices have to be there."""
        return num_reached([self.num_devices], self.devices)

    def axes(self, rank: int) -> dict[str, int]:
        """Returns the sizes of a rank's mesh axes by name."""
        return dict(self.meshes[rank].axes)

    @property
    def is_staged(self) -> bool:
        """Whether the plan is of programs that an executor runs, and not of one whose ops are sharded."""
        return self.sharding is None

    @property
    def is_one_stage(self) -> bool:
        """Whether one program is the whole step."""
        return not self.schedule and not self.shares

    def machine(self) -> Cluster:
        """Returns the cluster, whose devices are in the order in which ranks have them. Raises as `parse_cluster`."""
        return as_placed(parse_cluster("\n".join(self.cluster)), self.devices)

    @property
    def cluster_name(self) -> str:
        """What the cluster's file calls it."""
        names = (line.partition("=")[2].strip().strip('"') for line in self.cluster if line.startswith("name"))
        return next(names, "a cluster without a name")

    def read_arguments(self) -> frozenset[int]:
        """Returns the arguments that are read, by number."""
        if self.execution is None:
            return frozenset(range(len(self.arguments)))
        return frozenset(one.argument for one in self.execution.step.instructions if isinstance(one, Feed))

    def form(self) -> str:
        """Returns how the step is divided, in words."""
        count = self.num_micro_batches
        batches = f", {count} micro-batch{'es' if count != 1 else ''}"
        if self.is_one_stage:
            return f"one program on mesh {self.mesh}{batches if count > 1 else ''}"
        if self.shares:
            each = " and ".join(filter(None, [", ".join(map(str, self.shares[:-1])), str(self.shares[-1])]))
            return f"{self.num_ranks} replicas of mesh {self.mesh}{batches}: {each}"
        ranks = f"{self.num_ranks} rank{'s' if self.num_ranks != 1 else ''}"
        where = f", {placement_text(self.machine(), self.devices)}" if self.devices else ""
        return f"{self.num_stages} stages on {ranks} of {meshes_text(self.meshes)}{batches}, {self.schedule}{where}"


def meshes_text(meshes: Sequence[Mesh]) -> str:
    """Returns the meshes of ranks in words: the mesh that all have, or each."""
    return f"mesh {meshes[0]}" if len(set(meshes)) == 1 else f"meshes {'; '.join(map(str, meshes))}"


def rows_text(rows: tuple[int, int]) -> str:
    """Returns how the path of some rows of a leaf ends."""
    return f"[{rows[0]}:{rows[1]}]"


def kind_of(dtype: object, shape: Sequence[int]) -> str:
    """Returns the kind of a tensor."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def kind_shape(kind: str) -> tuple[int, ...]:
    """Returns the shape that a kind says."""
    inside = kind.partition("[")[2].rstrip("]")
    return tuple(map(int, inside.split(","))) if inside else ()


def key_dims(tensors: Sequence[Tensor]) -> dict[int, int]:
    """Returns the typed keys among tensors by number, with how many dims each has behind its own."""
    return {number: one.num_key_dims for number, one in enumerate(tensors) if one.num_key_dims}


def dims_between_calls(tensor: Tensor, mesh: Mapping[str, int]) -> Dims:
    """Returns the axes that split each dim of an array of JAX's, which has its own shape.

    JAX splits no dim that devices do not divide, and none by a part of each of its blocks. What splits a padded dim,
    blocks that interleave or the inside of others in the program splits another dim between calls, the first that is
    left with a multiple of its size, or none.
    """
    shape, padded = tensor.shape, tensor.padded or tensor.shape
    dims, homeless = list[list[str]](), list[str]()
    interleaved = tensor.interleaved or ((),) * len(shape)
    for size, larger, blocks, (outer, *inner) in zip(shape, padded, interleaved, _stored_dims(tensor), strict=True):
        inside, is_other = [axis for axes in inner for axis in axes], larger != size or blocks
        dims.append([] if is_other else list(outer))
        homeless += [*outer, *inside] if is_other else inside
    for axis in homeless:
        parts = [prod(mesh[one] for one in (*axes, axis)) for axes in dims]
        home = next((dim for dim, size in enumerate(shape) if size and size % parts[dim] == 0), None)
        if home is not None:
            dims[home].append(axis)
    return tuple(map(tuple, dims))


def _stored_dims(tensor: Tensor) -> list[Dims]:
    """Returns, for each dim of a tensor, the axes that split what it is stored as.

    That is one dim, or two where it is seen as blocks: that of the blocks, and that inside of each.
    """
    shape = tensor.padded or tensor.shape
    found, start = list[Dims](), 0
    for size in shape:
        end = start + (2 if tensor.viewed and tensor.viewed[start] != size else 1)
        found.append(tensor.dims[start:end])
        start = end
    return found


def num_parts(tensor: Tensor, mesh: Mapping[str, int]) -> int:
    """Returns into how many parts a tensor is split."""
    return prod(mesh[axis] for axes in tensor.dims for axis in axes)


def device_bytes(tensor: Tensor, mesh: Mapping[str, int]) -> int:
    """Returns the bytes of a tensor on a device of its rank."""
    return -(-tensor.num_bytes // num_parts(tensor, mesh))


IN_HOST_MEMORY: Final = ", in host memory"
"""Behind how a tensor lies that is there."""


def host_bytes(tensors: Sequence[Tensor], mesh: Mapping[str, int]) -> int:
    """Returns the bytes of arguments that lie in host memory for a device, and of those that the caller keeps twice."""
    return sum(device_bytes(one, mesh) * (2 if one.is_kept else 1) for one in tensors if one.memory == HOST)


def folded(name: str) -> str:
    """Returns a tensor's or op's name with `[*]` for its numbers: those of layers, say, which are alike in all else."""
    return _NUMBER.sub("[*]", name)


def common_name(names: Sequence[str]) -> str:
    """Returns what tensors or ops go by whose names differ in numbers alone; one by itself goes by its own name."""
    return names[0] if len(set(names)) == 1 else folded(names[0])


def dims_text(dims: Dims) -> str:
    """Returns dims as Shardy lists them: `[{}, {"x"}]`."""
    return "[" + ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in dims) + "]"


def layout_text(spec: int, axes: Sequence[str], rank: int) -> str:
    """Returns the sharding of a tensor of `rank` on the mesh axes, as Shardy lists dims.

    A partial sum is written as `sum over` its axes.
    """
    dims = dims_text(tuple(tuple(axes[axis] for axis in one) for one in dim_axes(spec, len(axes), rank)))
    sums = ", ".join(f'"{axes[axis]}"' for axis in partial_axes(spec))
    return f"{dims} sum over {{{sums}}}" if sums else dims
