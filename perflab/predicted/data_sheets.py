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
_THREADS_OF_SM = {75: 1024, 86: 1536, 87: 1536, 89: 1536, 120: 1536, 121: 1536}
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
    def threads_of_sm(self) -> int:
        """The most resident threads of a multiprocessor: ``maxThreadsPerMultiProcessor``."""
        return _THREADS_OF_SM.get(self.architecture, 2048)

    @property
    def context_bytes(self) -> int:
        """The estimated memory that a process uses outside of PyTorch's allocator."""
        return CONTEXT_HOPPER_BYTES if self.architecture >= HOPPER else CONTEXT_BYTES

    @property
    def workspace_bytes(self) -> int:
        """The memory in PyTorch's allocator that cuBLAS uses per handle and stream that has multiplied matrices."""
        return WORKSPACE_HOPPER_BYTES if self.architecture >= HOPPER else WORKSPACE_BYTES


def _rates(
    float64: float,
    float32: float,
    tf32: float | None,
    bfloat16: float | None,
    float16: float,
    float8: float | None = None,
) -> Mapping[str, float]:
    """Convert TFLOP/s to FLOP/s by dtype, without dtypes whose rate is None. Both formats of float8 have one rate."""
    teras = {"float64": float64, "float32": float32, "tf32": tf32, "bfloat16": bfloat16, "float16": float16}
    teras |= {"float8_e4m3fn": float8, "float8_e5m2": float8}
    return MappingProxyType({dtype: tera * 1e12 for dtype, tera in teras.items() if tera is not None})


def _nvidia(
    name: str,
    architecture: int,
    sms: int,
    memory_mib: int,
    gigabytes_per_s: float,
    l2_mib: float,
    rates: Mapping[str, float],
    source: str,
    *device_names: str,
) -> Gpu:
    sheet = _other(name, memory_mib / 1024, gigabytes_per_s, l2_mib, rates, source, *device_names)
    return Gpu(**vars(sheet), architecture=architecture, sms=sms)


def _other(
    name: str,
    memory_gib: float,
    gigabytes_per_s: float,
    cache_mib: float,
    rates: Mapping[str, float],
    source: str,
    device_name: str,
    *other_device_names: str,
) -> DataSheet:
    return DataSheet(
        name=name,
        device_name=device_name,
        other_device_names=other_device_names,
        memory_bytes=int(memory_gib * _GIB),
        bandwidth_bytes_per_s=gigabytes_per_s * 1e9,
        rates=rates,
        l2_bytes=int(cache_mib * _MIB),
        source=source,
    )


def _apple(chip: str, most_gib: int, gigabytes_per_s: float, cache_mib: int) -> DataSheet:
    """Return the sheet of a chip: its bandwidth is published, and the most memory that one is sold with.

    Rates are published of few chips, and none of a dtype's products. Without a rate only bytes bound the time.
    """
    source = f"Mac (Apple, technical specifications), {chip}: unified memory and its bandwidth"
    name, rates = chip.lower().replace(" ", "-"), MappingProxyType[str, float]({})
    return _other(name, most_gib, gigabytes_per_s, cache_mib, rates, source, f"Apple {chip}")


_H100_TABLE = 'NVIDIA H100 Tensor Core GPU Architecture (whitepaper), "H100 Tensor Core GPU Performance Specs", '
# fmt: off
_SHEETS = (
    # float64: A100 and Hopper use tensor cores. Chips with GDDR reach 1/64 of the float32 rate, Turing 1/32; the sheets
    # do not state these rates, the whitepapers do.
    # name                sm  SMs      MiB  GB/s L2 MiB  TFLOP/s: float64, float32, TF32, bfloat16, float16, float8
    _nvidia("a100-40gb",  80, 108,  40_325, 1555,    40, _rates(19.5, 19.5, 156, 312, 312),
        'NVIDIA A100 Tensor Core GPU (data sheet), "System Specifications", A100 40GB',
        "NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
    _nvidia("a100-80gb",  80, 108,  81_038, 2039,    40, _rates(19.5, 19.5, 156, 312, 312),
        'NVIDIA A100 Tensor Core GPU (data sheet), "Technical Specifications", A100 80GB SXM',
        "NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM-80GB"),
    _nvidia("h100",       90, 132,  80_998, 3352,    50, _rates(66.9, 66.9, 494.7, 989.4, 989.4, 1978.9),
        _H100_TABLE + "H100 SXM5; bandwidth: GH100 GPU comparison", "NVIDIA H100 80GB HBM3"),
    _nvidia("h100-pcie",  90, 114,  80_998, 2039,    50, _rates(51.2, 51.2, 378, 756, 756, 1513),
        _H100_TABLE + "H100 PCIe; bandwidth: GH100 GPU comparison", "NVIDIA H100 PCIe"),
    _nvidia("h200",       90, 132, 143_073, 4800,    60, _rates(66.9, 66.9, 494.7, 989.4, 989.4, 1978.9),
        'NVIDIA H200 Tensor Core GPU (data sheet), "Technical Specifications", H200 SXM', "NVIDIA H200"),
    # Half of the sparse rates. The sheet rounds TF32's to 2.2 PFLOP/s: half of bfloat16's, as on all GPUs.
    _nvidia("b200",      100, 148, 182_630, 8000, 126.5, _rates(40, 80, 1125, 2250, 2250, 4500),
        'NVIDIA Blackwell Architecture (technical brief), "System Specifications", HGX B200', "NVIDIA B200"),
    _nvidia("l4",         89,  58,  22_476,  300,    48, _rates(30.3 / 64, 30.3, 60, 121, 121, 242.5),
        'NVIDIA L4 Tensor Core GPU (data sheet), "Technical Specifications"', "NVIDIA L4"),
    # The sheet has 362.05 | 733 for bfloat16. Half of the sparse rate is used: it fits TF32 and float8.
    _nvidia("l40s",       89, 142,  45_455,  864,    96, _rates(91.6 / 64, 91.6, 183.2, 366.5, 366.5, 733),
        'NVIDIA L40S (data sheet), "Technical Specifications"', "NVIDIA L40S"),
    _nvidia("a10",        86,  72,  22_589,  600,     6, _rates(31.2 / 64, 31.2, 62.5, 125, 125),
        'NVIDIA A10 Tensor Core GPU (data sheet), "Specifications"', "NVIDIA A10"),
    _nvidia("rtx4090",    89, 128,  24_081, 1008,    72, _rates(82.6 / 64, 82.6, 82.6, 165.2, 165.2, 330.3),
        "NVIDIA Ada GPU Architecture (whitepaper), specifications of the GeForce RTX 4090",
        "NVIDIA GeForce RTX 4090"),
    _nvidia("rtx3090",    86,  82,  24_124,  936,     6, _rates(35.6 / 64, 35.6, 35.6, 71, 71),
        "NVIDIA Ampere GA102 GPU Architecture (whitepaper), specifications of the GeForce RTX 3090",
        "NVIDIA GeForce RTX 3090"),
    _nvidia("rtx5090",   120, 170,  32_102, 1792,    96, _rates(104.8 / 64, 104.8, 104.8, 209.5, 209.5, 419),
        "NVIDIA RTX Blackwell GPU Architecture (whitepaper), specifications of the GeForce RTX 5090",
        "NVIDIA GeForce RTX 5090"),
    _nvidia("v100-32gb",  70,  80,  32_491,  900,     6, _rates(7.8, 15.7, None, None, 125),
        'NVIDIA V100 Tensor Core GPU (data sheet), "Specifications", V100 SXM2',
        "Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB", "Tesla V100-SXM3-32GB"),
    _nvidia("t4",         75,  40,  14_909,  320,     4, _rates(8.1 / 32, 8.1, None, None, 65),
        'NVIDIA T4 Tensor Core GPU (data sheet), "Specifications"', "Tesla T4"),
    # name            GiB    GB/s caches MiB  TFLOP/s: float64, float32, TF32, bfloat16, float16, float8
    _other("mi300x",  192, 5324.8, 256 + 8 * 4, _rates(163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9),
        'AMD Instinct MI300X Accelerator (data sheet), "Specifications"; caches: AMD CDNA 3 whitepaper',
        "AMD Instinct MI300X"),
    # TF32 has no instruction there: float32's rate is used.
    _other("mi355x",  288,   8192, 256 + 8 * 4, _rates(78.6, 157.3, None, 2516.6, 2516.6, 5033.2),
        'AMD Instinct MI355X GPU (data sheet), "Specifications"; caches: AMD CDNA 4 whitepaper',
        "AMD Instinct MI355X"),
    _other("max1550", 128, 3276.8,         408, _rates(52.4, 52.4, 419.4, 838.9, 838.9),
        "Intel Data Center GPU Max Series (technical overview), Max 1550, both stacks; a stack has half",
        "Intel(R) Data Center GPU Max 1550"),
    # The page has float32 and INT8; float16 is half of INT8, and float64 1/16 of float32.
    _other("b60",      24,    456,          18, _rates(12.28 / 16, 12.28, 49.2, 98.5, 98.5),
        "Intel Arc Pro B60 Graphics (product specifications); caches: Xe2 overview",
        "Intel(R) Arc(TM) Pro B60 Graphics"),
    # chip            GiB   GB/s caches MiB
    _apple("M1 Max",    64, 409.6,  64),
    _apple("M2 Ultra", 192, 819.2, 128),
    _apple("M3 Ultra", 512, 819.2, 128),
    _apple("M4",        32,   120,  32),
    _apple("M4 Max",   128, 546.1,  64),
)
# fmt: on
GPUS: Mapping[str, DataSheet] = MappingProxyType({one.name: one for one in _SHEETS})
"""The data sheets of all known GPUs, by name."""
MODELLED: Mapping[str, Gpu] = MappingProxyType({name: one for name, one in GPUS.items() if isinstance(one, Gpu)})
"""The GPUs for which calls are predicted; for all others there are bounds alone."""
