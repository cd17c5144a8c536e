"""The clusters that have a name, as cluster files put together from shared blocks.

Every number says where it came from; "estimate" marks those that no data sheet, paper or measurement known to us
states.
"""

from __future__ import annotations

from typing import Final

_XLA_GPU_MEMORY = (
    "JAX's allocator takes 75 % of a GPU's memory unless XLA_CLIENT_MEM_FRACTION says otherwise (JAX docs)"
)

_GPU_HEADROOM: Final = (
    "headroom_fraction = { value = 0.03, source = \"1 % is the driver's: CUDA has 79.1 of 80 GiB of an H100; the rest "
    "is an estimate, for what lies beside a step: the next batch, the last one's results, gaps of the allocator\" }"
)
_TPU_HEADROOM: Final = (
    'headroom_fraction = { value = 0.02, source = "estimate, for what lies beside a step: the next batch, the last '
    "one's results\" }"
)

_WORKSPACE = "what XLA:GPU of jaxlib 0.10.2 gives each product of cuBLAS"


def _host_link(bytes_per_s: float, words: str) -> str:
    """Returns the rate of copies to and from the host; of a link, large ones reach about four fifths."""
    return f'host_bytes_per_s = {{ value = {bytes_per_s}, source = "estimate: {words}" }}'


_SHARED = "shared by the two GPUs behind a switch, of which copies reach 80 %"
_PCIE3_SHARED: Final = _host_link(6.3e9, f"PCIe gen3 x16, 15.75 GB/s per direction (DGX-1), {_SHARED}")
_PCIE3: Final = _host_link(12.6e9, "PCIe gen3 x16, 15.75 GB/s per direction, of which copies reach 80 %")
_PCIE4_SHARED: Final = _host_link(12.6e9, f"PCIe gen4 x16, 31.5 GB/s per direction (DGX A100), {_SHARED}")
_PCIE5: Final = _host_link(50e9, "PCIe gen5 x16, 63 GB/s per direction, of which copies reach 80 %")
_TPU_LINK: Final = _host_link(12.6e9, "as PCIe gen3 x16 for each chip; Google states no figure")


def _host_memory(share_bytes: float, words: str) -> str:
    """Returns what may lie in host memory: half of a device's share, the rest is the input's and the system's."""
    return f'\nhost_bytes = {{ value = {int(share_bytes / 2)}, source = "half of a device\'s share: {words}" }}\n'


_DGX1_HOST: Final = _host_memory(512e9 / 8, "NVIDIA DGX-1 data sheet (2018), 512 GB for 8 GPUs")
_AS_DGX1_HOST: Final = _host_memory(512e9 / 8, "an estimate, as DGX-1, 512 GB for 8 GPUs")
_DGX_A100_HOST: Final = _host_memory(2e12 / 8, "NVIDIA DGX A100 640GB data sheet (2021), 2 TB for 8 GPUs")
_DGX_H100_HOST: Final = _host_memory(2e12 / 8, "NVIDIA DGX H100 data sheet (2023), 2 TB for 8 GPUs")
_AS_DGX_H100_HOST: Final = _host_memory(2e12 / 8, "an estimate, as DGX H100, 2 TB for 8 GPUs")

_V100_MEMORY = f"""
hbm_bytes = {{ value = 34359738368, source = "NVIDIA V100 data sheet (2020): 32 GB HBM2, that is 32 GiB; \
ECC takes none of it" }}
usable_hbm_fraction = {{ value = 0.75, source = "{_XLA_GPU_MEMORY}" }}
{_GPU_HEADROOM}
matmul_efficiency = {{ value = 0.75, source = "Rhino paper, section 7.2: up to 75.9 % of peak over a whole GPT step" }}
memory_efficiency = {{ value = 0.83, source = "estimate, after Jia et al., Dissecting Volta (2018): \
about 750 of 900 GB/s" }}
workspace_bytes = {{ value = 4194304, source = "{_WORKSPACE}: 4 MiB" }}
"""

_V100_SXM2: Final = f"""
[device]
kind = "V100-SXM2-32GB"
platform = "gpu"
hbm_bytes_per_s = {{ value = 9.0e11, source = "NVIDIA V100 data sheet (2020), SXM2: 900 GB/s" }}
{_PCIE3_SHARED}{_DGX1_HOST}{_V100_MEMORY}
[device.flops_per_s]
f64 = {{ value = 7.8e12, source = "NVIDIA V100 data sheet (2020), SXM2: 7.8 TFLOPS" }}
f32 = {{ value = 15.6e12, source = "Rhino paper, section 7.2: ideal peak 15.6 TFLOPs (the data sheet says 15.7)" }}
f16 = {{ value = 125e12, source = "NVIDIA V100 data sheet (2020), SXM2: 125 tensor TFLOPS" }}
"""

_V100S_PCIE: Final = f"""
[device]
kind = "V100S-PCIE-32GB"
platform = "gpu"
hbm_bytes_per_s = {{ value = 1.134e12, source = "NVIDIA V100 data sheet (2020), V100S PCIe: 1134 GB/s" }}
{_PCIE3}{_AS_DGX1_HOST}{_V100_MEMORY}
[device.flops_per_s]
f64 = {{ value = 8.2e12, source = "NVIDIA V100 data sheet (2020), V100S PCIe: 8.2 TFLOPS" }}
f32 = {{ value = 16.4e12, source = "NVIDIA V100 data sheet (2020), V100S PCIe: 16.4 TFLOPS" }}
f16 = {{ value = 130e12, source = "NVIDIA V100 data sheet (2020), V100S PCIe: 130 tensor TFLOPS" }}
"""

_P100_SHEET = "NVIDIA P100 data sheet (2016), PCIe 16 GB"

_P100: Final = f"""
[device]
kind = "P100-PCIE-16GB"
platform = "gpu"
hbm_bytes = {{ value = 17179869184, source = "{_P100_SHEET}: 16 GB HBM2, that is 16 GiB" }}
usable_hbm_fraction = {{ value = 0.75, source = "{_XLA_GPU_MEMORY}" }}
{_GPU_HEADROOM}
hbm_bytes_per_s = {{ value = 7.32e11, source = "{_P100_SHEET}: 732 GB/s" }}
{_PCIE3_SHARED}{_AS_DGX1_HOST}
matmul_efficiency = {{ value = 0.75, source = "estimate: as on V100" }}
memory_efficiency = {{ value = 0.75, source = "estimate, after Jia et al., Dissecting Volta (2018): \
about 550 of 732 GB/s" }}
workspace_bytes = {{ value = 4194304, source = "{_WORKSPACE}: 4 MiB" }}
[device.flops_per_s]
f64 = {{ value = 4.7e12, source = "{_P100_SHEET}: 4.7 TFLOPS" }}
f32 = {{ value = 9.3e12, source = "{_P100_SHEET}: 9.3 TFLOPS" }}
f16 = {{ value = 18.7e12, source = "{_P100_SHEET}: 18.7 TFLOPS" }}
"""

_T4_SHEET = "NVIDIA T4 data sheet (2019)"

_T4: Final = f"""
[device]
kind = "T4-16GB"
platform = "gpu"
hbm_bytes = {{ value = 17179869184, source = "{_T4_SHEET}: 16 GB GDDR6" }}
usable_hbm_fraction = {{ value = 0.75, source = "{_XLA_GPU_MEMORY}" }}
{_GPU_HEADROOM}
hbm_bytes_per_s = {{ value = 3.2e11, source = "{_T4_SHEET}: 320 GB/s" }}
{_PCIE3_SHARED}{_AS_DGX1_HOST}
matmul_efficiency = {{ value = 0.6, source = "estimate: its clock falls under the power limit of 70 W" }}
memory_efficiency = {{ value = 0.75, source = "estimate, after Jia et al., Dissecting Turing (2019): about 240 of \
320 GB/s" }}
workspace_bytes = {{ value = 4194304, source = "{_WORKSPACE}: 4 MiB" }}
[device.flops_per_s]
f32 = {{ value = 8.1e12, source = "{_T4_SHEET}: 8.1 TFLOPS" }}
f16 = {{ value = 65e12, source = "{_T4_SHEET}: 65 TFLOPS, mixed precision" }}
i8 = {{ value = 130e12, source = "{_T4_SHEET}: 130 TOPS" }}
"""

_A100: Final = f"""
[device]
kind = "A100-SXM4-80GB"
platform = "gpu"
hbm_bytes = {{ value = 85899345920, source = "NVIDIA A100 data sheet (2021): 80 GB HBM2e, that is 80 GiB" }}
usable_hbm_fraction = {{ value = 0.75, source = "{_XLA_GPU_MEMORY}" }}
{_GPU_HEADROOM}
hbm_bytes_per_s = {{ value = 2.039e12, source = "NVIDIA A100 data sheet (2021), SXM 80GB: 2039 GB/s" }}
{_PCIE4_SHARED}{_DGX_A100_HOST}
matmul_efficiency = {{ value = 0.8, source = "estimate: large cuBLAS products reach 250 of 312 bf16 TFLOPS" }}
memory_efficiency = {{ value = 0.85, source = "estimate: stream-like kernels" }}
workspace_bytes = {{ value = 4194304, source = "{_WORKSPACE}: 4 MiB" }}
[device.flops_per_s]
f64 = {{ value = 19.5e12, source = "NVIDIA A100 data sheet (2021): FP64 tensor core 19.5 TFLOPS" }}
f32 = {{ value = 19.5e12, source = "NVIDIA A100 data sheet (2021): FP32 19.5 TFLOPS" }}
tf32 = {{ value = 156e12, source = "NVIDIA A100 data sheet (2021): TF32 156 TFLOPS, dense" }}
bf16 = {{ value = 312e12, source = "NVIDIA A100 data sheet (2021): BFLOAT16 312 TFLOPS, dense" }}
f16 = {{ value = 312e12, source = "NVIDIA A100 data sheet (2021): FP16 312 TFLOPS, dense" }}
i8 = {{ value = 624e12, source = "NVIDIA A100 data sheet (2021): INT8 624 TOPS, dense" }}
"""

_H100_SHEET = "NVIDIA H100 data sheet (2023), SXM"

_HOPPER_RATES = f"""matmul_efficiency = {{ value = 0.65, source = "estimate: large cuBLAS products reach 600 to 700 \
of 989 bf16 TFLOPS under the power limit" }}
memory_efficiency = {{ value = 0.9, source = "estimate: stream-like kernels" }}
workspace_bytes = {{ value = 33554432, source = "{_WORKSPACE}: 32 MiB" }}
[device.flops_per_s]
f64 = {{ value = 67e12, source = "{_H100_SHEET}: FP64 tensor core 67 TFLOPS" }}
f32 = {{ value = 67e12, source = "{_H100_SHEET}: FP32 67 TFLOPS" }}
tf32 = {{ value = 494.5e12, source = "{_H100_SHEET}: TF32 989 TFLOPS with sparsity, half of it dense" }}
bf16 = {{ value = 989.5e12, source = "{_H100_SHEET}: BFLOAT16 1979 TFLOPS with sparsity, half of it dense" }}
f16 = {{ value = 989.5e12, source = "{_H100_SHEET}: FP16 1979 TFLOPS with sparsity, half of it dense" }}
f8 = {{ value = 1979e12, source = "{_H100_SHEET}: FP8 3958 TFLOPS with sparsity, half of it dense" }}
i8 = {{ value = 1979e12, source = "{_H100_SHEET}: INT8 3958 TOPS with sparsity, half of it dense" }}
"""

_H100: Final = f"""
[device]
kind = "H100-SXM5-80GB"
platform = "gpu"
hbm_bytes = {{ value = 85899345920, source = "NVIDIA H100 data sheet (2023): 80 GB HBM3, that is 80 GiB \
(nvidia-smi shows 81559 MiB)" }}
usable_hbm_fraction = {{ value = 0.75, source = "{_XLA_GPU_MEMORY}" }}
{_GPU_HEADROOM}
hbm_bytes_per_s = {{ value = 3.35e12, source = "{_H100_SHEET}: 3.35 TB/s" }}
{_PCIE5}{_DGX_H100_HOST}
{_HOPPER_RATES}"""

_H200: Final = f"""
[device]
kind = "H200-SXM-141GB"
platform = "gpu"
hbm_bytes = {{ value = 151397597184, source = "NVIDIA H200 data sheet (2024): 141 GB; bytes by the driver" }}
usable_hbm_fraction = {{ value = 0.75, source = "{_XLA_GPU_MEMORY}" }}
{_GPU_HEADROOM}
hbm_bytes_per_s = {{ value = 4.8e12, source = "NVIDIA H200 data sheet (2024), SXM: 4.8 TB/s" }}
{_PCIE5}{_AS_DGX_H100_HOST}
{_HOPPER_RATES}"""

_B200_SHEET = "NVIDIA HGX B200 data sheet (2025), per GPU"

_B200: Final = f"""
[device]
kind = "B200-SXM-180GB"
platform = "gpu"
hbm_bytes = {{ value = 191514411008, source = "bytes as the driver reports of a B200" }}
usable_hbm_fraction = {{ value = 0.75, source = "{_XLA_GPU_MEMORY}" }}
{_GPU_HEADROOM}
hbm_bytes_per_s = {{ value = 7.67e12, source = "what the driver reports: 3996 MHz memory clock, 7672 GB/s" }}
{_PCIE5}{_AS_DGX_H100_HOST}
matmul_efficiency = {{ value = 0.65, source = "estimate: as on H100" }}
memory_efficiency = {{ value = 0.9, source = "estimate: as on H100" }}
workspace_bytes = {{ value = 33554432, source = "{_WORKSPACE}: 32 MiB" }}
[device.flops_per_s]
f64 = {{ value = 37e12, source = "{_B200_SHEET}: FP64 37 TFLOPS" }}
f32 = {{ value = 75e12, source = "{_B200_SHEET}: FP32 75 TFLOPS" }}
tf32 = {{ value = 1100e12, source = "{_B200_SHEET}: TF32 2.2 PFLOPS with sparsity, half of it dense" }}
bf16 = {{ value = 2250e12, source = "{_B200_SHEET}: BF16 4.5 PFLOPS with sparsity, half of it dense" }}
f16 = {{ value = 2250e12, source = "{_B200_SHEET}: FP16 4.5 PFLOPS with sparsity, half of it dense" }}
f8 = {{ value = 4500e12, source = "{_B200_SHEET}: FP8 9 PFLOPS with sparsity, half of it dense" }}
i8 = {{ value = 4500e12, source = "{_B200_SHEET}: INT8 9 POPS with sparsity, half of it dense" }}
"""

_V5E: Final = (
    """
[device]
kind = "TPU v5e"
platform = "tpu"
hbm_bytes = { value = 17179869184, source = "Google Cloud docs, TPU v5e: 16 GB HBM2 per chip, that is 16 GiB" }
usable_hbm_fraction = { value = 0.96, source = "estimate: XLA's error messages say 15.48 of 16 G on v3, \
30.75 of 32 G on v4" }
"""
    + _TPU_HEADROOM
    + """
hbm_bytes_per_s = { value = 8.19e11, source = "Google Cloud docs, TPU v5e: 819 GBps" }
"""
    + _TPU_LINK
    + _host_memory(192e9 / 4, "Google Cloud docs, ct5lp-hightpu-4t: 192 GB for 4 chips")
    + """
matmul_efficiency = { value = 0.85, source = "estimate" }
memory_efficiency = { value = 0.9, source = "estimate" }
near_memory_bytes = { value = 117440512, source = "128 MiB of VMEM (JAX's tpu_info.py, 0.10.2) without the 16 MiB of \
kernels: the most that libtpu 0.0.51 assigns there" }
[device.flops_per_s]
bf16 = { value = 197e12, source = "Google Cloud docs, TPU v5e: 197 TFLOPs per chip" }
i8 = { value = 393e12, source = "Google Cloud docs, TPU v5e: 393 TOPs per chip" }
"""
)

_SPARSE_CORE: Final = """
[device.compile_options]
xla_tpu_enable_sparse_core_collective_offload_2d_all_gather = true
xla_tpu_enable_sparse_core_collective_offload_3d_all_gather = true
xla_tpu_enable_sparse_core_collective_offload_all_gather = true
xla_tpu_enable_sparse_core_collective_offload_all_reduce = true
xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter = true
xla_tpu_enable_sparse_core_collective_offload_reduce_scatter = true
xla_tpu_enable_sparse_core_offload_queuing_in_lhs = true
"""
# Collectives run beside products, on SparseCores, and are queued there. JAX's own tests and published recipes of
# MaxText set them. Steps as libtpu 0.0.51 schedules them, of scanned LLaMA layers in FSDP: 214 ms without, 156 with
# them on v6e-8, and 262 and 194 on v5p-16 (2026-11-27, without a device).

_V5P: Final = (
    """
[device]
kind = "TPU v5p"
platform = "tpu"
hbm_bytes = { value = 102005473280, source = "Google Cloud docs, TPU v5p: 95 GiB per chip" }
usable_hbm_fraction = { value = 0.96, source = "estimate: XLA's error messages say 15.48 of 16 G on v3, \
30.75 of 32 G on v4" }
"""
    + _TPU_HEADROOM
    + """
hbm_bytes_per_s = { value = 2.765e12, source = "Google Cloud docs, TPU v5p: 2765 GBps" }
"""
    + _TPU_LINK
    + _host_memory(448e9 / 4, "Google Cloud docs, ct5p-hightpu-4t: 448 GB for 4 chips")
    + """
matmul_efficiency = { value = 0.85, source = "estimate" }
memory_efficiency = { value = 0.9, source = "estimate" }
near_memory_bytes = { value = 50331648, source = "64 MiB of VMEM (JAX's tpu_info.py, 0.10.2) without the 16 MiB of \
kernels: the most that libtpu 0.0.51 assigns there" }
[device.flops_per_s]
bf16 = { value = 459e12, source = "Google Cloud docs, TPU v5p: 459 TFLOPs per chip" }
i8 = { value = 918e12, source = "estimate: twice the bf16 rate, as on v5e" }
"""
    + _SPARSE_CORE
)

_V6E: Final = (
    """
[device]
kind = "TPU v6e"
platform = "tpu"
hbm_bytes = { value = 34359738368, source = "Google Cloud docs, TPU v6e: 32 GB HBM per chip, that is 32 GiB" }
usable_hbm_fraction = { value = 0.96, source = "estimate: XLA's error messages say 15.48 of 16 G on v3, \
30.75 of 32 G on v4" }
"""
    + _TPU_HEADROOM
    + """
hbm_bytes_per_s = { value = 1.638e12, source = "Google Cloud docs, TPU v6e: 1638 GBps" }
"""
    + _TPU_LINK
    + _host_memory(720e9 / 4, "Google Cloud docs, ct6e-standard-4t: 720 GB for 4 chips")
    + """
matmul_efficiency = { value = 0.85, source = "estimate" }
memory_efficiency = { value = 0.9, source = "estimate" }
near_memory_bytes = { value = 100663296, source = "128 MiB of VMEM (JAX's tpu_info.py, 0.10.2) without the 32 MiB of \
kernels: the most that libtpu 0.0.51 assigns there" }
[device.flops_per_s]
bf16 = { value = 918e12, source = "Google Cloud docs, TPU v6e: 918 TFLOPs per chip" }
i8 = { value = 1836e12, source = "Google Cloud docs, TPU v6e: 1836 TOPs per chip" }
"""
    + _SPARSE_CORE
)

_NCCL_NVLINK = "NCCL's tuning tables (hwLat, src/graph/tuning.cc): NVLink ring step, LL128 protocol, 1.9 us"
_NCCL_NET = "NCCL's tuning tables (hwLat, src/graph/tuning.cc): network ring step, LL128 protocol, 4.0 us"
_NCCL_370 = "NCCL protocol overhead of about 20 %: 370 of 450 GB/s on H100 (NVIDIA/nccl-tests #212)"

_NVLINK2: Final = f"""
[[level]]
name = "nvlink"
size = 8
topology = "ring"
devices_per_port = 1
latency_s = {{ value = 1.9e-6, source = "{_NCCL_NVLINK}" }}
port_bytes_per_s = {{ value = 150e9, source = "NVIDIA V100 white paper (2017): 6 NVLinks of 25 GB/s per direction, \
all in rings over 8" }}
efficiency = {{ value = 0.87, source = "estimate: nccl-tests reach about 130 of 150 GB/s bus bandwidth on 8 V100" }}
[level.partial_bytes_per_s]
2 = {{ value = 25e9, source = "hybrid cube mesh of DGX-1 (white paper, 2017): the weakest pair has one link" }}
4 = {{ value = 100e9, source = "hybrid cube mesh of DGX-1 (white paper, 2017): \
four links of a GPU stay within its quad" }}
"""


_PCIE3_SWITCHES: Final = """
[[level]]
name = "pcie"
size = 8
topology = "switch"
devices_per_port = 1
latency_s = { value = 2.5e-6, source = "NCCL's tuning tables (hwLat, src/graph/tuning.cc): PCIe ring step, LL128 \
protocol, 2.5 us" }
port_bytes_per_s = { value = 15.75e9, source = "PCIe gen3 x16, per direction" }
efficiency = { value = 0.65, source = "estimate: rings through PCIe switches and the sockets' link reach about \
10 GB/s" }
"""


def _nvswitch(generation: int, port_bytes_per_s: float, words: str) -> str:
    return f"""
[[level]]
name = "nvlink"
size = 8
topology = "switch"
devices_per_port = 1
latency_s = {{ value = 1.9e-6, source = "{_NCCL_NVLINK}" }}
port_bytes_per_s = {{ value = {port_bytes_per_s}, source = "NVLink {generation}: {words}" }}
efficiency = {{ value = 0.82, source = "{_NCCL_370}" }}
"""


def _network(
    name: str, size: int, devices_per_port: int, port: tuple[float, str], efficiency: tuple[float, str]
) -> str:
    return f"""
[[level]]
name = "{name}"
size = {size}
topology = "switch"
devices_per_port = {devices_per_port}
latency_s = {{ value = 4.0e-6, source = "{_NCCL_NET}" }}
port_bytes_per_s = {{ value = {port[0]}, source = "{port[1]}" }}
efficiency = {{ value = {efficiency[0]}, source = "{efficiency[1]}" }}
"""


def _tpu_links(size: int, port: tuple[float, str], pairs: tuple[float, ...], name: str = "ici") -> str:
    partial = "".join(
        f'{units} = {{ value = {rate}, source = "one link: a group of {units} is a line of the slice, not a ring" }}\n'
        for units, rate in zip((2, 4), pairs, strict=False)
    )
    return f"""
[[level]]
name = "{name}"
size = {size}
topology = "ring"
devices_per_port = 1
latency_s = {{ value = 1.0e-6, source = "estimate: about 1 us per hop" }}
port_bytes_per_s = {{ value = {port[0]}, source = "{port[1]}" }}
efficiency = {{ value = 0.9, source = "estimate" }}
[level.partial_bytes_per_s]
{partial}"""


_RENDEZVOUS_S: Final = {2: 130e-6, 4: 200e-6, 8: 350e-6}
"""The latency of every collective of so many host devices on two cores: until the threads of all are there."""

_RATES: Final = {
    "all_reduce": 1.0,
    "all_gather": 2.8,
    "reduce_scatter": 1.0,
    "all_to_all": 1.0,
    "collective_permute": 1.8,
}
"""The bytes per second of each collective, over those of an all-reduce."""


def _cpu(size: int, memory_bytes_per_s: float, f32_flops_per_s: float, vector_per_s: float, reduced: float) -> str:
    """Returns the device and the level of so many host devices, which reduce `reduced` bytes per second.

    All is per device, and rough: `rhino-profile` measures the machine at hand.
    """
    measured = f"rough measurement: rhino-profile, jaxlib 0.10.2, {size} host devices at once on a 2-core x86 machine"
    steps = 2 * (size - 1)

    def collective(kind: str, times: float) -> str:
        rows = [
            f'{group} = {{ latency_s = {seconds}, bytes_per_s = {times * reduced}, source = "{measured}" }}\n'
            for group, seconds in _RENDEZVOUS_S.items()
            if group <= size
        ]
        return "".join([f"[level.collectives.{kind}]\n", *rows])

    return f"""
[device]
kind = "host CPU, 1/{size} of 2 cores"
platform = "cpu"
hbm_bytes = {{ value = 2147483648, source = "a budget chosen for tests, not a property of the host" }}
usable_hbm_fraction = {{ value = 1.0, source = "the figure above is a budget already" }}
hbm_bytes_per_s = {{ value = {memory_bytes_per_s}, source = "{measured}: what the kernels of a step move" }}
matmul_efficiency = {{ value = 1.0, source = "the FLOP/s figures are measured, not peaks" }}
memory_efficiency = {{ value = 1.0, source = "the bandwidth figure is measured, not a peak" }}
vector_per_s = {{ value = {vector_per_s}, source = "{measured}: multiplications and additions in one kernel" }}
host_bytes_per_s = {{ value = {memory_bytes_per_s / 2}, source = "a copy reads and writes the same memory" }}
host_bytes = {{ value = 2147483648, source = "a budget chosen for tests, as that of devices" }}
[device.flops_per_s]
f64 = {{ value = {f32_flops_per_s / 2}, source = "half of f32, as vectors hold half as many" }}
f32 = {{ value = {f32_flops_per_s}, source = "{measured}: products of matrices" }}
bf16 = {{ value = {f32_flops_per_s}, source = "{measured}: products of matrices, as in f32" }}
[[level]]
name = "shared memory"
size = {size}
topology = "host"
devices_per_port = 1
latency_s = {{ value = {_RENDEZVOUS_S[size] / steps}, source = "{measured}: the all-reduce, taken as a ring" }}
port_bytes_per_s = {{ value = {steps / size * reduced}, source = "{measured}: the all-reduce, taken as a ring" }}
efficiency = {{ value = 1.0, source = "the bandwidth figure is measured, not a peak" }}
{"".join([collective(kind, times) for kind, times in _RATES.items()])}"""


_ROCE = (12.5e9, "Rhino paper, section 7.1: one 100G RoCE port per machine, 100 Gb/s = 12.5 GB/s per direction")
_HDR = (25e9, "NVIDIA DGX A100 data sheet (2020): 8 ConnectX-6 ports of 200 Gb/s, one per GPU")
_NDR = (50e9, "NVIDIA DGX H100 data sheet (2022): 8 ConnectX-7 ports of 400 Gb/s, one per GPU")
_ROCE_REACHED = (0.88, "estimate: Ethernet, RoCE and NCCL overheads, 11 of 12.5 GB/s")
_IB_REACHED = (0.92, "estimate: InfiniBand and NCCL overheads")
_ICI_V5E = (
    100e9,
    "Google Cloud docs, TPU v5e: 400 GBps both ways over 4 links, 50 GB/s per link and direction; a ring uses 2 links",
)
_ICI_V5P = (
    200e9,
    "Google Cloud docs, TPU v5p: 1200 GBps both ways over 6 links, 100 GB/s per link and direction; "
    "a ring uses 2 links",
)

_ICI_V6E = (
    200e9,
    "Google Cloud docs, TPU v6e: 800 GBps both ways over 4 links, 100 GB/s per link and direction; a ring uses 2 links",
)


def _torus(size: int, port: tuple[float, str], pairs: tuple[float, ...]) -> str:
    """Returns the levels of a cube of chips: along each of its three sides they are rings of `size`."""
    return "".join([_tpu_links(size, port, pairs, f"ici-{side}") for side in "xyz"])


_NVLINK3 = _nvswitch(3, 300e9, "12 links of 25 GB/s per direction (NVIDIA A100 white paper, 2020)")
_NVLINK4 = _nvswitch(4, 450e9, "18 links of 25 GB/s per direction (NVIDIA H100 white paper, 2022)")
_NVLINK5 = _nvswitch(5, 900e9, "18 links of 50 GB/s per direction (NVIDIA Blackwell architecture brief, 2024)")

_CLUSTERS: Final[dict[str, tuple[str, str, str]]] = {
    "cpu2": ("two host devices of one machine", "", _cpu(2, 8.7e9, 80e9, 26e9, 2.2e9)),
    "cpu4": ("four host devices of one machine", "", _cpu(4, 5.3e9, 40e9, 16e9, 1.5e9)),
    "cpu8": ("eight host devices of one machine", "", _cpu(8, 2.8e9, 20e9, 8e9, 0.8e9)),
    "v100x8": ("one machine of the Rhino paper's platform M8", "v100-sxm2", _V100_SXM2 + _NVLINK2),
    "v100x8x2": (
        "two machines of the Rhino paper's platform M8",
        "v100-sxm2",
        _V100_SXM2 + _network("roce", 2, 8, _ROCE, _ROCE_REACHED) + _NVLINK2,
    ),
    "s1x8": (
        "eight machines of the Rhino paper's platform S1",
        "v100s-pcie",
        _V100S_PCIE + _network("roce", 8, 1, _ROCE, _ROCE_REACHED),
    ),
    "p100x8": ("one machine of eight P100 on PCIe", "", _P100 + _PCIE3_SWITCHES),
    "t4x8": ("one machine of eight T4 on PCIe", "", _T4 + _PCIE3_SWITCHES),
    "a100x8": ("one DGX A100", "a100-sxm-80gb", _A100 + _NVLINK3),
    "a100x8x2": (
        "two DGX A100",
        "a100-sxm-80gb",
        _A100 + _network("infiniband", 2, 1, _HDR, _IB_REACHED) + _NVLINK3,
    ),
    "h100x8": ("one DGX H100", "h100-sxm", _H100 + _NVLINK4),
    "h100x8x2": ("two DGX H100", "h100-sxm", _H100 + _network("infiniband", 2, 1, _NDR, _IB_REACHED) + _NVLINK4),
    "h100x8x4": ("four DGX H100", "h100-sxm", _H100 + _network("infiniband", 4, 1, _NDR, _IB_REACHED) + _NVLINK4),
    "h100x8x8": ("eight DGX H100", "h100-sxm", _H100 + _network("infiniband", 8, 1, _NDR, _IB_REACHED) + _NVLINK4),
    "h200x8": ("one DGX H200", "h200-sxm", _H200 + _NVLINK4),
    "b200x8": ("one DGX B200", "b200-sxm", _B200 + _NVLINK5),
    "v5e-8": ("a 2x4 slice of TPU v5e", "v5e:2x4", _V5E + _tpu_links(8, _ICI_V5E, (50e9, 50e9))),
    "v5e-16": ("a 4x4 slice of TPU v5e", "v5e:4x4", _V5E + _tpu_links(16, _ICI_V5E, (50e9, 50e9))),
    "v6e-8": ("a 2x4 slice of TPU v6e", "v6e:2x4", _V6E + _tpu_links(8, _ICI_V6E, (100e9, 100e9))),
    "v5p-8": (
        "a 2x2x1 slice of TPU v5p: 4 chips (the 8 in its name counts cores)",
        "v5p:2x2x1",
        _V5P + _tpu_links(4, _ICI_V5P, (100e9,)),
    ),
    "v5p-16": (
        "a 2x2x2 slice of TPU v5p: 8 chips (the 16 in its name counts cores)",
        "v5p:2x2x2",
        _V5P + _tpu_links(8, _ICI_V5P, (100e9, 100e9)),
    ),
    "v5p-128": ("a 4x4x4 slice of TPU v5p: a torus of 64 chips", "v5p:4x4x4", _V5P + _torus(4, _ICI_V5P, (100e9,))),
    "v5p-1024": (
        "an 8x8x8 slice of TPU v5p: a torus of 512 chips",
        "v5p:8x8x8",
        _V5P + _torus(8, _ICI_V5P, (100e9, 100e9)),
    ),
}

JOINED: Final = ("v100x8+p100x8", "v100x8+t4x8", "a100x8+h100x8")
"""Clusters of unlike devices, as tables of presets list them; any others are joined likewise."""

PRESETS: Final[dict[str, str]] = {
    name: f'version = 2\nname = "{name}"\nabout = "{about}"\n'
    + (f'compile_for = "{compile_for}"\n' if compile_for else "")
    + body
    for name, (about, compile_for, body) in _CLUSTERS.items()
}
