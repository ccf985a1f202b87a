"""Every kernel of the lab, compiled ahead of time for every architecture: what it takes is gated, without a GPU."""

from __future__ import annotations

from perflab.records import KernelResources


def test_kernel(compiled_kernel: KernelResources) -> None:
    spilled_bytes = compiled_kernel.spill_store_bytes + compiled_kernel.spill_load_bytes
    assert spilled_bytes == 0, "tiles are chosen so that nothing spills"
