"""The lab's Triton kernels compiled ahead of time, without a GPU: do they fit, do they use the tensor cores?

A few of those that `perflab kernels` gates in full: the ones nearest to their limits.
"""

from collections.abc import Iterator

import pytest
import torch

from perflab.compiled.compiler.pool import CompilerPool
from perflab.lab.attention.examples import launches as attention_launches
from perflab.lab.attention.triton_tiles import candidate_tiles
from perflab.lab.kernels.examples import launches as fused_launches
from perflab.lab.launch import SHARED_BYTES
from perflab.results.compiled import CompiledKernel, KernelResources

pytestmark = pytest.mark.correctness

REGISTRATION = "tests.perf.kernels:examples"
ON_TENSOR_CORES: list[tuple[str, int | str, str]] = [
    ("attention_forward-bf16-d128-causal-128x64-w8", 90, "wgmma"),
    ("attention_forward-bf16-d128-causal-128x64-w8", 80, "mma"),
    ("attention_forward_tma-bf16-d128-causal-128x64-w8", 90, "wgmma"),
    ("attention_dk_dv-bf16-d128-causal-32x128-w8", 90, "wgmma"),
    ("attention_dk_dv-bf16-d64-windowed-32x128-w8", 90, "wgmma"),
    ("attention_dq-bf16-d256-causal-64x32-w8", 90, "wgmma"),
    ("attention_decode-bf16-d128-windowed-16x64-w4", 90, "mma"),
    ("quantised_product-int4-128-bf16-1", 90, "mma"),
    ("attention_forward-bf16-d64-causal-64x64-w4", "gfx942", "mfma"),
    ("attention_forward-bf16-d64-causal-64x64-w4", "gfx950", "mfma"),
]
WITHOUT: list[tuple[str, int | str]] = [
    ("attention_forward-fp32-d128-causal-32x16-w8", 90),
    ("attention_dk_dv-fp32-d128-causal-16x16-w8", 80),
    ("attention_delta-bf16-d128", 90),
    ("rms_norm_backward-fp32-8192", 90),
    ("weighted_sum_backward-fp32-128", 90),
    ("cross_entropy-bf16-128256", 90),
    ("rms_norm-bf16-128", "gfx942"),
]
ALL = [(name, arch) for name, arch, _ in ON_TENSOR_CORES] + WITHOUT


@pytest.fixture(scope="module")
def compiled() -> Iterator[dict[tuple[str, int | str], CompiledKernel]]:
    """All of them, compiled in processes that do not know of Triton's interpreter."""
    with CompilerPool() as pool:
        asked = {(name, arch): pool.submit(REGISTRATION, name, arch) for name, arch in ALL}
        yield {key: answer.result() for key, answer in asked.items()}


def resources(compiled: dict[tuple[str, int | str], CompiledKernel], name: str, arch: int | str) -> KernelResources:
    found = compiled[name, arch]
    assert found.resources is not None, found.problem
    return found.resources


@pytest.mark.parametrize(("name", "arch"), ALL)
def test_a_kernel_fits_without_spilling(
    name: str, arch: int | str, compiled: dict[tuple[str, int | str], CompiledKernel]
) -> None:
    found = resources(compiled, name, arch)
    assert found.static_shared_bytes + found.dynamic_shared_bytes <= found.shared_limit_bytes
    assert (found.spill_store_bytes, found.spill_load_bytes) == (0, 0)


@pytest.mark.parametrize(("name", "arch", "kind"), ON_TENSOR_CORES)
def test_sixteen_bit_products_run_on_the_tensor_cores(
    name: str, arch: int | str, kind: str, compiled: dict[tuple[str, int | str], CompiledKernel]
) -> None:
    found = resources(compiled, name, arch).instructions
    assert found.get(kind, 0) > 0
    assert ("tma" in name) == ("tma" in found), "what is called TMA copies by TMA, and nothing else does"


@pytest.mark.parametrize(("name", "arch"), WITHOUT)
def test_float32_stays_ieee(name: str, arch: int | str, compiled: dict[tuple[str, int | str], CompiledKernel]) -> None:
    """A tensor core would round its operands to TF32."""
    assert resources(compiled, name, arch).instructions == {}


@pytest.mark.parametrize("kernel", ["forward", "decode", "dk_dv", "dq"])
@pytest.mark.parametrize("shared_kib", [99, 163, 227], ids=lambda kib: f"{kib}KiB")
def test_there_are_tiles_for_every_head_dimension_on_every_recent_gpu(kernel: str, shared_kib: int) -> None:
    """99 KiB a block: consumer GPUs of Ampere and Ada, A10, L4. What has a forward must have a backward."""
    for dtype in (torch.bfloat16, torch.float32):
        for head_dim in (16, 40, 64, 80, 128, 192, 256):
            for tiles in candidate_tiles(kernel, head_dim, dtype, shared_kib * 1024):
                assert tiles.shared_bytes(kernel, head_dim, dtype.itemsize) <= shared_kib * 1024


def test_a_gpu_with_too_little_memory_for_wide_heads_has_all_other_examples() -> None:
    """64 KiB a block: MI300. A width without a backward has no forward either."""
    all_of_them, here = (set(attention_launches(kib * 1024, 0)) for kib in (163, 64))
    kinds = [{"-".join(name.split("-")[:4]) for name in some} for some in (all_of_them, here)]
    assert kinds[1] < kinds[0]
    assert {one.split("-")[2] for one in kinds[0] - kinds[1]} == {"d256"}


def test_the_fused_examples_hold_every_kernel_forward_and_backward_and_no_memory() -> None:
    found = fused_launches(SHARED_BYTES[90])
    assert {launch.kernel.__name__ for launch in found.values()} == {
        "weighted_sum_kernel",
        "weighted_sum_backward_kernel",
        "sum_partials_kernel",
        "rms_norm_kernel",
        "rms_norm_backward_kernel",
        "rms_norm_dx_kernel",
        "rms_norm_d_weight_kernel",
        "swiglu_kernel",
        "swiglu_backward_kernel",
        "cross_entropy_kernel",
        "cross_entropy_backward_kernel",
        "quantised_product_kernel",
        "selective_scan_kernel",
        "selective_scan_backward_kernel",
    }
    assert {launch.device.type for launch in found.values()} == {"meta"}
