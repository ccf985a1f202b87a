"""Computes how many blocks of a kernel fit onto a multiprocessor, and what limits them. Pure.

As NVIDIA's occupancy calculator counts (``cuda_occupancy.h``): registers are given to warps, in units of 256 and within
a quarter of the multiprocessor; shared memory to blocks, in units of 128 bytes. An upper bound, not a measurement: a
grid may be too small, and a launch may ask for another split of cache and shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from perflab.compiled.compiler.architectures import (
    REGISTERS_PER_SM,
    RESERVED_SHARED_BYTES,
    TENSOR_COLUMNS,
    Architecture,
)

WARP = 32
_REGISTER_UNIT = 256
_PARTITIONS = 4
_SHARED_UNIT = 128


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that are on a multiprocessor at once."""

    blocks: int
    warps: int
    limited_by: str
    """``registers``, ``shared memory``, ``tensor memory``, ``warps`` or ``blocks``: whichever runs out first."""


def occupancy(
    architecture: Architecture, *, num_warps: int, registers: int, shared_bytes: int, tensor_columns: int = 0
) -> Occupancy:
    """The occupancy of a kernel.

    Args:
        architecture: the multiprocessor.
        num_warps: warps of a block.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic.
        tensor_columns: of a block. NVIDIA's calculator leaves them out: a block too many is there, but waits for them.
    """
    per_warp = _round_up(registers * WARP, _REGISTER_UNIT)
    warps_by_registers = _PARTITIONS * (REGISTERS_PER_SM // _PARTITIONS // per_warp) if per_warp else 10**9
    if per_warp * _round_up(num_warps, _PARTITIONS) > REGISTERS_PER_SM:  # the hardware's check of a launch
        warps_by_registers = 0
    shared = _round_up(shared_bytes + RESERVED_SHARED_BYTES, _SHARED_UNIT)
    limits = {
        "warps": architecture.max_warps // num_warps,
        "registers": warps_by_registers // num_warps,
        "shared memory": architecture.shared_bytes // shared,
        "blocks": architecture.max_blocks,
        **({"tensor memory": TENSOR_COLUMNS // tensor_columns} if tensor_columns else {}),
    }
    limited_by = min(limits, key=lambda name: limits[name])
    blocks = limits[limited_by]
    return Occupancy(blocks, blocks * num_warps, limited_by)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
