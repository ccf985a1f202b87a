"""Data sheets: memory, bandwidth and arithmetic of each GPU, with sources. Pure data.

``gpus.py`` finds a GPU by its name.

Rates are **dense**: many of NVIDIA's sheets print the rate with 2:4 sparsity, twice the dense rate, which no operator
of PyTorch reaches on ordinary tensors. Rates are at the sheet's boost clock, and of products with float32 accumulation,
which PyTorch requests from cuBLAS by default (other settings: ``allow_fp16_accumulation``, twice as fast on GeForce;
emulated float32 on Blackwell). If a GPU has no instruction for products of a dtype, the dtype has no rate: bfloat16 on
a V100 or T4; ``gpus.rate_of`` then uses the rate of another dtype.

**Memory** is what CUDA reports (``torch.cuda.get_device_properties().total_memory``), which is less than the nominal
size: the driver keeps some, and ECC on GDDR takes a sixteenth. Drivers differ by up to 1.4 %. The values here are the
least that was reported for the device's name, in MiB: printed by PyTorch or Ultralytics, or taken from "has a total
capacity of 79.10 GiB" in an error and rounded down. (On Windows more is reported, and less is usable.)

**The context** is the memory that a process uses outside of PyTorch's allocator: CUDA's context, and kernels as they
are loaded (lazily since CUDA 11.7; before, the context was over 1 GiB). Errors that PyTorch raises show the size: "this
process has ... in use" less the memory that is allocated and that is reserved but unallocated. The size was 0.25 to
0.45 GiB on GPUs before Hopper, 0.65 on an H200 and 0.70 on a B200. The values here are estimates: NCCL, and libraries
with allocators of their own, use more.

**Other makers' GPUs** have bounds alone. PyTorch's operators take other kernels there, with other temporary memory, and
no such GPU has been held against a prediction. What the operators' own results take, a call takes everywhere: so
the peak is at least that, and the room at most the nominal memory. For the time's bound, data may stay in every cache
on the chip, AMD's Infinity Cache among them. Apple publishes no size of its system cache: the values here are more than
measurements have found. Bandwidths are the bus's width times its data rate, which sheets round.

**The workspace** is the memory that cuBLAS gets in PyTorch's allocator (``aten/src/ATen/cuda/CublasHandlePool.cpp``),
unless ``CUBLAS_WORKSPACE_CONFIG`` or ``torch.backends.cuda.cublas_workspace_size`` set another size: ``:4096:2:16:8``,
which is 8,519,680 B, and 32 MiB on Hopper (sm_90). PyTorch 2.13 uses 32 MiB on Blackwell (sm_100, sm_120) too; earlier
versions used the smaller size there. The first product of each handle and stream allocates the workspace, which is then
kept. A handle belongs to a thread, and backward runs in a thread of its own, so a training step on one stream has two
workspaces. cuBLASLt (``addmm`` with a bias, scaled products) uses the same memory and size
(``TORCH_CUBLASLT_UNIFIED_WORKSPACE``, the default); before, cuBLASLt had 1 MiB in addition. Versions after 2.13
allocate a workspace in each product and free it when the product is queued: it then counts only if a product is at the
peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_MIB = 2**20
_GIB = 2**30
HOPPER = 90
CONTEXT_BYTES = 512 * _MIB
CONTEXT_HOPPER_BYTES = 768 * _MIB
"""The context's estimated size in bytes from Hopper on. Both estimates round up the sizes that were observed."""
WORKSPACE_BYTES = (2 * 4096 + 8 * 16) * 1024
"""The bytes of cuBLAS's workspace ``:4096:2:16:8``: two buffers of 4096 KiB and eight of 16 KiB."""
WORKSPACE_HOPPER_BYTES = 32 * _MIB


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """A GPU's values from its data sheet, enough for bounds: of a GPU of any maker."""

    name: str
    """The name by which a user selects the GPU, and by which its baselines are stored: ``a100-40gb``."""
    device_name: str
    """The name that PyTorch reports: ``NVIDIA A100-SXM4-40GB`` from ``torch.cuda.get_device_name()``."""
    memory_bytes: int
    """The total memory: of NVIDIA's GPUs what CUDA reports, else the nominal size, the most that there can be."""
    bandwidth_bytes_per_s: float
    """The bandwidth of the GPU's memory."""
    rates: Mapping[str, float]
    """Dense FLOP/s of products by torch's name of the dtype; ``tf32`` is float32 in tensor cores."""
    l2_bytes: int
    """The size of the caches that data can stay in from one operator to the next: of NVIDIA's GPUs the L2 cache."""
    source: str
    """The title and the table of the document that states the rates and the bandwidth."""
    other_device_names: tuple[str, ...] = ()
    """The device names of other boards that the sheet covers, and the names that older drivers report."""

    @property
    def context_bytes(self) -> int:
        """The memory that a process surely uses outside of PyTorch's allocator: none that is known."""
        return 0

    @property
    def room_bytes(self) -> int:
        """The bytes that PyTorch's allocator can use, workspaces and fragmentation included: memory less context."""
        return self.memory_bytes - self.context_bytes

    @property
    def workspace_bytes(self) -> int:
        """The memory that libraries surely take in PyTorch's allocator: none that is known."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Gpu(DataSheet):
    """A GPU of NVIDIA's, for which the kernels that PyTorch chooses, and so the memory of a call, can be predicted."""

    architecture: int
    """The compute capability without its dot: 90 is sm_90."""
    sms: int

    @property
    def context_bytes(self) -> int:
        """The estimated memory that a process uses outside of PyTorch's allocator."""
        return CONTEXT_HOPPER_BYTES if self.architecture >= HOPPER else CONTEXT_BYTES

    @property
    def workspace_bytes(self) -> int:
        """The memory in PyTorch's allocator that cuBLAS uses per handle and stream that has multiplied matrices."""
        return WORKSPACE_HOPPER_BYTES if self.architecture >= HOPPER else WORKSPACE_BYTES


def _rates(
    *,
    float64: float,
    float32: float,
    tf32: float | None = None,
    bfloat16: float | None = None,
    float16: float,
    float8: float | None = None,
) -> Mapping[str, float]:
    """Convert TFLOP/s to FLOP/s by dtype, without dtypes whose rate is None. Both formats of float8 have one rate."""
    teras = {
        "float64": float64,
        "float32": float32,
        "tf32": tf32,
        "bfloat16": bfloat16,
        "float16": float16,
        "float8_e4m3fn": float8,
        "float8_e5m2": float8,
    }
    return MappingProxyType({dtype: tera * 1e12 for dtype, tera in teras.items() if tera is not None})


# float64: A100 and Hopper use tensor cores. Chips with GDDR reach 1/64 of the float32 rate, Turing 1/32; the sheets do
# not state these rates, the whitepapers do.
_A100 = _rates(float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312)
_HOPPER = _rates(float64=66.9, float32=66.9, tf32=494.7, bfloat16=989.4, float16=989.4, float8=1978.9)
_H100_TABLE = 'NVIDIA H100 Tensor Core GPU Architecture (whitepaper), "H100 Tensor Core GPU Performance Specs", '

GPUS: Mapping[str, DataSheet] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            Gpu(
                name="a100-40gb",
                device_name="NVIDIA A100-SXM4-40GB",
                other_device_names=("A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
                architecture=80,
                memory_bytes=40_325 * _MIB,
                bandwidth_bytes_per_s=1555e9,
                rates=_A100,
                l2_bytes=40 * _MIB,
                sms=108,
                source='NVIDIA A100 Tensor Core GPU (data sheet), "System Specifications", A100 40GB',
            ),
            Gpu(
                name="a100-80gb",
                device_name="NVIDIA A100-SXM4-80GB",
                other_device_names=("A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM-80GB"),
                architecture=80,
                memory_bytes=81_038 * _MIB,
                bandwidth_bytes_per_s=2039e9,
                rates=_A100,
                l2_bytes=40 * _MIB,
                sms=108,
                source='NVIDIA A100 Tensor Core GPU (data sheet), "Technical Specifications", A100 80GB SXM',
            ),
            Gpu(
                name="h100",
                device_name="NVIDIA H100 80GB HBM3",
                architecture=90,
                memory_bytes=80_998 * _MIB,
                bandwidth_bytes_per_s=3352e9,
                rates=_HOPPER,
                l2_bytes=50 * _MIB,
                sms=132,
                source=_H100_TABLE + "H100 SXM5; bandwidth: GH100 GPU comparison",
            ),
            Gpu(
                name="h100-pcie",
                device_name="NVIDIA H100 PCIe",
                architecture=90,
                memory_bytes=80_998 * _MIB,
                bandwidth_bytes_per_s=2039e9,
                rates=_rates(float64=51.2, float32=51.2, tf32=378, bfloat16=756, float16=756, float8=1513),
                l2_bytes=50 * _MIB,
                sms=114,
                source=_H100_TABLE + "H100 PCIe; bandwidth: GH100 GPU comparison",
            ),
            Gpu(
                name="h200",
                device_name="NVIDIA H200",
                architecture=90,
                memory_bytes=143_073 * _MIB,
                bandwidth_bytes_per_s=4.8e12,
                rates=_HOPPER,
                l2_bytes=60 * _MIB,
                sms=132,
                source='NVIDIA H200 Tensor Core GPU (data sheet), "Technical Specifications", H200 SXM',
            ),
            Gpu(
                name="b200",
                device_name="NVIDIA B200",
                architecture=100,
                memory_bytes=182_630 * _MIB,
                bandwidth_bytes_per_s=8e12,
                # Half of the sparse rates. The sheet rounds TF32's to 2.2 PFLOP/s: half of bfloat16's, as on all GPUs.
                rates=_rates(float64=40, float32=80, tf32=1125, bfloat16=2250, float16=2250, float8=4500),
                l2_bytes=132_644_864,
                sms=148,
                source='NVIDIA Blackwell Architecture (technical brief), "System Specifications", HGX B200',
            ),
            Gpu(
                name="l4",
                device_name="NVIDIA L4",
                architecture=89,
                memory_bytes=22_476 * _MIB,
                bandwidth_bytes_per_s=300e9,
                rates=_rates(float64=30.3 / 64, float32=30.3, tf32=60, bfloat16=121, float16=121, float8=242.5),
                l2_bytes=48 * _MIB,
                sms=58,
                source='NVIDIA L4 Tensor Core GPU (data sheet), "Technical Specifications"',
            ),
            Gpu(
                name="l40s",
                device_name="NVIDIA L40S",
                architecture=89,
                memory_bytes=45_455 * _MIB,
                bandwidth_bytes_per_s=864e9,
                # The sheet has 362.05 | 733 for bfloat16. Half of the sparse rate is used: it fits TF32 and float8.
                rates=_rates(float64=91.6 / 64, float32=91.6, tf32=183.2, bfloat16=366.5, float16=366.5, float8=733),
                l2_bytes=96 * _MIB,
                sms=142,
                source='NVIDIA L40S (data sheet), "Technical Specifications"',
            ),
            Gpu(
                name="a10",
                device_name="NVIDIA A10",
                architecture=86,
                memory_bytes=22_589 * _MIB,
                bandwidth_bytes_per_s=600e9,
                rates=_rates(float64=31.2 / 64, float32=31.2, tf32=62.5, bfloat16=125, float16=125),
                l2_bytes=6 * _MIB,
                sms=72,
                source='NVIDIA A10 Tensor Core GPU (data sheet), "Specifications"',
            ),
            Gpu(
                name="rtx4090",
                device_name="NVIDIA GeForce RTX 4090",
                architecture=89,
                memory_bytes=24_081 * _MIB,
                bandwidth_bytes_per_s=1008e9,
                rates=_rates(float64=82.6 / 64, float32=82.6, tf32=82.6, bfloat16=165.2, float16=165.2, float8=330.3),
                l2_bytes=72 * _MIB,
                sms=128,
                source="NVIDIA Ada GPU Architecture (whitepaper), specifications of the GeForce RTX 4090",
            ),
            Gpu(
                name="rtx3090",
                device_name="NVIDIA GeForce RTX 3090",
                architecture=86,
                memory_bytes=24_124 * _MIB,
                bandwidth_bytes_per_s=936e9,
                rates=_rates(float64=35.6 / 64, float32=35.6, tf32=35.6, bfloat16=71, float16=71),
                l2_bytes=6 * _MIB,
                sms=82,
                source="NVIDIA Ampere GA102 GPU Architecture (whitepaper), specifications of the GeForce RTX 3090",
            ),
            Gpu(
                name="rtx5090",
                device_name="NVIDIA GeForce RTX 5090",
                architecture=120,
                memory_bytes=32_102 * _MIB,
                bandwidth_bytes_per_s=1792e9,
                rates=_rates(float64=104.8 / 64, float32=104.8, tf32=104.8, bfloat16=209.5, float16=209.5, float8=419),
                l2_bytes=96 * _MIB,
                sms=170,
                source="NVIDIA RTX Blackwell GPU Architecture (whitepaper), specifications of the GeForce RTX 5090",
            ),
            Gpu(
                name="v100-32gb",
                device_name="Tesla V100-SXM2-32GB",
                other_device_names=("Tesla V100-PCIE-32GB", "Tesla V100-SXM3-32GB"),
                architecture=70,
                memory_bytes=32_491 * _MIB,
                bandwidth_bytes_per_s=900e9,
                rates=_rates(float64=7.8, float32=15.7, float16=125),
                l2_bytes=6 * _MIB,
                sms=80,
                source='NVIDIA V100 Tensor Core GPU (data sheet), "Specifications", V100 SXM2',
            ),
            Gpu(
                name="t4",
                device_name="Tesla T4",
                architecture=75,
                memory_bytes=14_909 * _MIB,
                bandwidth_bytes_per_s=320e9,
                rates=_rates(float64=8.1 / 32, float32=8.1, float16=65),
                l2_bytes=4 * _MIB,
                sms=40,
                source='NVIDIA T4 Tensor Core GPU (data sheet), "Specifications"',
            ),
            DataSheet(
                name="mi300x",
                device_name="AMD Instinct MI300X",
                memory_bytes=192 * _GIB,
                bandwidth_bytes_per_s=5324.8e9,
                rates=_rates(float64=163.4, float32=163.4, tf32=653.7, bfloat16=1307.4, float16=1307.4, float8=2614.9),
                l2_bytes=(256 + 8 * 4) * _MIB,
                source='AMD Instinct MI300X Accelerator (data sheet), "Specifications"; caches: AMD CDNA 3 whitepaper',
            ),
            DataSheet(
                name="mi355x",
                device_name="AMD Instinct MI355X",
                memory_bytes=288 * _GIB,
                bandwidth_bytes_per_s=8192e9,
                # TF32 has no instruction there: float32's rate is used.
                rates=_rates(float64=78.6, float32=157.3, bfloat16=2516.6, float16=2516.6, float8=5033.2),
                l2_bytes=(256 + 8 * 4) * _MIB,
                source='AMD Instinct MI355X GPU (data sheet), "Specifications"; caches: AMD CDNA 4 whitepaper',
            ),
            DataSheet(
                name="max1550",
                device_name="Intel(R) Data Center GPU Max 1550",
                memory_bytes=128 * _GIB,
                bandwidth_bytes_per_s=3276.8e9,
                rates=_rates(float64=52.4, float32=52.4, tf32=419.4, bfloat16=838.9, float16=838.9),
                l2_bytes=408 * _MIB,
                source="Intel Data Center GPU Max Series (technical overview), Max 1550, both stacks; a stack has half",
            ),
            DataSheet(
                name="b60",
                device_name="Intel(R) Arc(TM) Pro B60 Graphics",
                memory_bytes=24 * _GIB,
                bandwidth_bytes_per_s=456e9,
                # The page has float32 and INT8; float16 is half of INT8, and float64 1/16 of float32.
                rates=_rates(float64=12.28 / 16, float32=12.28, tf32=49.2, bfloat16=98.5, float16=98.5),
                l2_bytes=18 * _MIB,
                source="Intel Arc Pro B60 Graphics (product specifications); caches: Xe2 overview",
            ),
            # Of Apple's chips the bandwidth is published, and the most memory that one is sold with; rates of few, and
            # none of a dtype's products. Without a rate only bytes bound the time.
            *(
                DataSheet(
                    name=chip.lower().replace(" ", "-"),
                    device_name=f"Apple {chip}",
                    memory_bytes=most_gib * _GIB,
                    bandwidth_bytes_per_s=gigabytes_per_s * 1e9,
                    rates=MappingProxyType({}),
                    l2_bytes=cache_mib * _MIB,
                    source=f"Mac (Apple, technical specifications), {chip}: unified memory and its bandwidth",
                )
                for chip, most_gib, gigabytes_per_s, cache_mib in (
                    ("M1 Max", 64, 409.6, 64),
                    ("M2 Ultra", 192, 819.2, 128),
                    ("M3 Ultra", 512, 819.2, 128),
                    ("M4", 32, 120, 32),
                    ("M4 Max", 128, 546.1, 64),
                )
            ),
        )
    }
)
"""The data sheets of all known GPUs, by name."""
MODELLED: Mapping[str, Gpu] = MappingProxyType({name: one for name, one in GPUS.items() if isinstance(one, Gpu)})
"""The GPUs for which calls are predicted; for all others there are bounds alone."""
