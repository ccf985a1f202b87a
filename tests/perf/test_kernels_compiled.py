"""Every kernel of the lab, compiled ahead of time for every architecture: what it takes is gated, without a GPU."""

from __future__ import annotations

import pytest

from perflab import KernelResources

SPILLING_IN_A_LOOP = {
    "attention_dk_dv-bf16-d64-windowed-32x128-w4-sm80",
    "attention_dk_dv-bf16-d64-windowed-64x128-w8-sm90",
    "attention_dk_dv-bf16-d64-windowed-64x64-w4-sm90",
    "attention_dq-bf16-d64-causal-128x32-w4-sm80",
    "attention_forward-bf16-d128-causal-128x128-w8-sm100",
    "attention_forward-bf16-d128-sinks-128x128-w8-sm90",
    "attention_forward-bf16-d128-sinks-128x64-w8-sm80",
    "attention_forward-bf16-d80-causal-128x128-w8-sm100",
    "attention_forward_tma-fp32-d128-causal-32x16-w8-sm100",
    "attention_forward_tma-fp32-d128-causal-32x16-w8-sm90",
    "attention_forward_tma-fp32-d64-causal-64x32-w8-sm100",
    "attention_forward_tma-fp32-d64-causal-64x32-w8-sm90",
}
"""Kernels that spill registers in a loop, to be given other tiles; baselines gate that they do it no more."""

FUSED = ("rms_norm", "swiglu", "cross_entropy", "weighted_sum", "sum_partials")
WIDEST = ("global_loads:16B", "global_stores:16B")
WIDE_SHARE = 0.85
"""Rows are loaded and stored in the widest accesses that there are; the rest are a row's numbers, such as 1 / rms."""


def test_kernel(compiled_kernel: KernelResources, request: pytest.FixtureRequest) -> None:
    spills = compiled_kernel.spill_store_bytes + compiled_kernel.spill_load_bytes
    # Local memory in a loop that spills: an array that is indexed there would be no spill (triton#1756).
    in_loops = sum(loop.issues.get("local_memory", 0) for loop in compiled_kernel.loops) if spills else 0
    known = request.node.callspec.id in SPILLING_IN_A_LOOP
    assert known or not in_loops, "tiles are chosen so that what a loop needs fits into registers"
    if request.node.callspec.id.startswith(FUSED):
        every = [item for loop in compiled_kernel.loops for item in loop.issues.items()]
        wide_bytes = 16 * sum(count for name, count in every if name in WIDEST)
        assert wide_bytes >= WIDE_SHARE * sum(loop.global_bytes for loop in compiled_kernel.loops)
