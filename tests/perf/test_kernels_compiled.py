"""Every kernel of the lab, compiled ahead of time for every architecture: what it takes is gated, without a GPU."""

from __future__ import annotations

from perflab import KernelResources

MOST_SPILLED_BYTES = 32
"""Stored and loaded: a register or two. Some tiles for the autotuner to try spill that on an architecture or other."""


def test_kernel(compiled_kernel: KernelResources) -> None:
    spilled_bytes = compiled_kernel.spill_store_bytes + compiled_kernel.spill_load_bytes
    assert spilled_bytes <= MOST_SPILLED_BYTES, "tiles are chosen so that they fit into registers"
