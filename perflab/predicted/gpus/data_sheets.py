"""Data sheets: memory, bandwidth and arithmetic of each GPU, with sources. Pure data.

Which GPU somebody means stands in ``names.py``.

Rates are **dense**: many of NVIDIA's sheets print the rate with 2:4 sparsity, twice that, which no operator of
PyTorch's reaches on ordinary tensors. They are of products with float32 accumulation, which is what PyTorch asks cuBLAS
for unless it is told otherwise (``allow_fp16_accumulation``, twice as fast on GeForce; emulated float32 on Blackwell),
and at the boost clock of the sheet. A dtype without a rate is one that the GPU has no instruction for products of:
bfloat16 on a V100 or T4; ``roofline.rate_of`` says what is reckoned with instead.

**Memory** is what CUDA reports (``torch.cuda.get_device_properties().total_memory``), not what the box says: the
driver keeps some, and ECC on GDDR takes a sixteenth. Drivers differ by up to 1.4 %; here is the least that was reported
by name, in MiB: printed by PyTorch or Ultralytics, or out of "has a total capacity of 79.10 GiB" in an error, then
rounded down. (On Windows more is reported, and less can be had.)

**The context** is what a process takes outside of PyTorch's allocator: CUDA's context, and kernels as they are loaded
(lazily since CUDA 11.7; before it was over 1 GiB). Errors that PyTorch raises tell it: "this process has ... in use"
less what is allocated and what is reserved but unallocated. That was 0.25 to 0.45 GiB on GPUs before Hopper, 0.65 on an
H200 and 0.70 on a B200. It is an estimate: NCCL, and libraries with allocators of their own, come on top.

**The workspace** is what cuBLAS is given in PyTorch's allocator (``aten/src/ATen/cuda/CublasHandlePool.cpp``), unless
``CUBLAS_WORKSPACE_CONFIG`` or ``torch.backends.cuda.cublas_workspace_size`` say otherwise: ``:4096:2:16:8``, which is
8,519,680 B, and 32 MiB on Hopper (sm_90), in PyTorch 2.13 on Blackwell (sm_100, sm_120) too, which before had the
smaller one. It is asked for by the first product of each handle and stream, and kept. A handle belongs to a thread, and
backward runs in a thread of its own: so a training step on one stream has two. cuBLASLt (``addmm`` with a bias, scaled
products) uses the same memory, its size too (``TORCH_CUBLASLT_UNIFIED_WORKSPACE``, the default); before, it had 1 MiB
beside it. Versions after 2.13 ask for a workspace in each product and give it back when that is queued: then it counts
only where a product is at the peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_MIB = 2**20
HOPPER = 90
CONTEXT_BYTES = 512 * _MIB
CONTEXT_HOPPER_BYTES = 768 * _MIB
"""From Hopper on. Both round up what was seen."""
WORKSPACE_BYTES = (2 * 4096 + 8 * 16) * 1024
"""``:4096:2:16:8`` in KiB: two buffers of 4 MiB, eight of 16 KiB."""
WORKSPACE_HOPPER_BYTES = 32 * _MIB


@dataclass(frozen=True)
class Gpu:
    """One product, as its data sheet has it."""

    name: str
    """What it is asked for by, and what its baselines are named for: ``a100-40gb``."""
    device_name: str
    """What ``torch.cuda.get_device_name()`` says: ``NVIDIA A100-SXM4-40GB``."""
    architecture: int
    """Compute capability without its dot: 90 is sm_90."""
    memory_bytes: int
    """All that CUDA reports."""
    bandwidth_bytes_per_s: float
    """Of its memory."""
    rates: Mapping[str, float]
    """Dense FLOP/s of products by dtype, as torch names it; ``tf32`` is float32 in tensor cores."""
    l2_bytes: int
    """As CUDA reports it."""
    sms: int
    source: str
    """Title and table of the document that rates and bandwidth stand in."""
    other_device_names: tuple[str, ...] = ()
    """Boards that the same sheet covers, and what older drivers say."""

    @property
    def context_bytes(self) -> int:
        """What a process takes of the memory outside of PyTorch's allocator: an estimate."""
        return CONTEXT_HOPPER_BYTES if self.architecture >= HOPPER else CONTEXT_BYTES

    @property
    def workspace_bytes(self) -> int:
        """What cuBLAS takes inside of it, of each handle and stream that has multiplied matrices."""
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
    """TFLOP/s to FLOP/s by dtype, without those that are None. Both formats of float8 have one rate."""
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


# float64: on A100 and Hopper in tensor cores. Chips with GDDR do it at 1/64 of float32, Turing at 1/32; their sheets
# leave it out, their whitepapers say so.
_A100 = _rates(float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312)
_HOPPER = _rates(float64=66.9, float32=66.9, tf32=494.7, bfloat16=989.4, float16=989.4, float8=1978.9)
_H100_TABLE = 'NVIDIA H100 Tensor Core GPU Architecture (whitepaper), "H100 Tensor Core GPU Performance Specs", '

GPUS: Mapping[str, Gpu] = MappingProxyType(
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
                # Half of what is sparse. Of TF32 that is 2.2 PFLOP/s, rounded: it is half of bfloat16, as everywhere.
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
                # For bfloat16 the sheet has 362.05 | 733: half of what is sparse, which goes with TF32 and float8.
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
        )
    }
)
"""By name."""
