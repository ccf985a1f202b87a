"""The lab's Triton kernels before they are compiled: tiles that fit into shared memory, and registered examples."""

import pytest
import torch

from perflab.lab.attention.examples import launches as attention_launches
from perflab.lab.attention.triton_tiles import candidate_tiles
from perflab.lab.kernels.examples import launches as fused_launches
from perflab.lab.launch import SHARED_BYTES

pytestmark = pytest.mark.correctness


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
