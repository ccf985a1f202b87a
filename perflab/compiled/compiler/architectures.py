"""Data sheet of each GPU architecture: registers, shared memory and warps; and how many blocks of a kernel fit. Pure.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the granularities are those of
NVIDIA's occupancy calculator, ``cuda_occupancy.h``, which Triton ships and a test compares with.
"""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS_PER_SM = 65_536
"""Registers of 32 bits, the same from sm_80 to sm_120; in four partitions."""
RESERVED_SHARED_BYTES = 1024
"""What the system keeps of a block's shared memory."""
TENSOR_COLUMNS = 512
"""Columns of tensor memory on a Blackwell data-center GPU, of 128 lanes of 32 bits."""
_WARP = 32
_REGISTER_UNIT = 256
_PARTITIONS = 4
_SHARED_UNIT = 128


@dataclass(frozen=True)
class Architecture:
    """Limits of one multiprocessor."""

    number: int
    """Compute capability without its dot: 90 is sm_90."""
    max_warps: int
    max_blocks: int
    shared_bytes: int

    @property
    def shared_limit_bytes(self) -> int:
        """The most that one block can have."""
        return self.shared_bytes - RESERVED_SHARED_BYTES


ARCHITECTURES = {
    a.number: a
    for a in (
        Architecture(80, max_warps=64, max_blocks=32, shared_bytes=164 * 1024),  # A100
        Architecture(86, max_warps=48, max_blocks=16, shared_bytes=100 * 1024),  # A10, RTX 30
        Architecture(89, max_warps=48, max_blocks=24, shared_bytes=100 * 1024),  # L4, L40S, RTX 40
        Architecture(90, max_warps=64, max_blocks=32, shared_bytes=228 * 1024),  # H100, H200
        Architecture(100, max_warps=64, max_blocks=32, shared_bytes=228 * 1024),  # B200
        Architecture(103, max_warps=64, max_blocks=32, shared_bytes=228 * 1024),  # B300
        Architecture(120, max_warps=48, max_blocks=24, shared_bytes=100 * 1024),  # RTX 50
    )
}
"""Limits of the architectures that kernels are compiled for, by number: 90 is sm_90."""


def parse_architectures(text: str) -> tuple[int, ...]:
    """Read ``"80,90,100"`` or ``"sm_90"``, in the order given.

    Raises:
        ValueError: one of them is not known, with those that are.
    """
    parts = [part for part in text.replace(",", " ").split() if part]
    numbers = [part.lower().removeprefix("sm_").removeprefix("sm").removesuffix("a") for part in parts]
    known = ", ".join(map(str, ARCHITECTURES))
    for part, number in zip(parts, numbers, strict=True):
        if not number.isdecimal() or int(number) not in ARCHITECTURES:
            raise ValueError(f"{part!r} is not an architecture that perflab has limits of; known are {known}")
    if not parts:
        raise ValueError(f"no architecture is named; known are {known}")
    return tuple(dict.fromkeys(map(int, numbers)))


def occupancy(
    architecture: Architecture, *, num_warps: int, registers: int, shared_bytes: int, tensor_columns: int = 0
) -> tuple[int, str]:
    """Blocks of a kernel that are on a multiprocessor at once, and what runs out first.

    That is ``registers``, ``shared memory``, ``tensor memory``, ``warps`` or ``blocks``. As NVIDIA's calculator counts,
    registers are given to warps, in units of 256 and within a quarter of the multiprocessor, and shared memory to
    blocks, in units of 128 bytes. An upper bound, not a measurement: a grid may be too small, and a launch may ask for
    another split of cache and shared memory.

    Registers are of a thread; warps, shared memory (static and dynamic) and columns of tensor memory are of a block.
    NVIDIA's calculator leaves columns out: a block too many is there, but waits for them.
    """
    per_warp = _round_up(registers * _WARP, _REGISTER_UNIT)
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
    return limits[limited_by], limited_by


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
