"""Every kernel of the lab, compiled ahead of time for every architecture: what it takes is gated, without a GPU."""

from __future__ import annotations

import pytest

from perflab import KernelResources

FUSED = ("rms_norm", "swiglu", "cross_entropy", "weighted_sum", "sum_partials")
MULTIPLY = ("decode-", "dk_dv", "dq", "forward", "grouped_", "one_pass", "quantised_product", "recurrence_")
"""Parts of the names of kernels that multiply matrices."""
WIDEST = ("global_loads:16B", "global_stores:16B")
WIDE_SHARE = 0.85
"""Rows are loaded and stored in the widest accesses that there are; the rest are a row's numbers, such as 1 / rms."""


def test_kernel(compiled_kernel: KernelResources, request: pytest.FixtureRequest) -> None:
    spills = compiled_kernel.spill_store_bytes + compiled_kernel.spill_load_bytes
    # Local memory in a loop that spills: an array that is indexed there would be no spill (triton#1756).
    in_loops = sum(loop.issues.get("local_memory", 0) for loop in compiled_kernel.loops) if spills else 0
    assert not in_loops, "tiles are chosen so that what a loop needs fits into registers"
    name, kinds = request.node.callspec.id, set(compiled_kernel.instructions)
    assert ("tma" in kinds) == ("_tma-" in name), "what is called TMA copies by TMA, and nothing else does"
    on_tensor_cores = kinds - {"tma"}
    if "fp32" in name:
        assert on_tensor_cores <= {"mfma"}, "NVIDIA's tensor cores would round float32 to TF32; AMD's do not round"
    else:
        assert bool(on_tensor_cores) == any(part in name for part in MULTIPLY)
    if name.startswith(FUSED):
        every = [item for loop in compiled_kernel.loops for item in loop.issues.items()]
        wide_bytes = 16 * sum(count for name, count in every if name in WIDEST)
        assert wide_bytes >= WIDE_SHARE * sum(loop.global_bytes for loop in compiled_kernel.loops)
