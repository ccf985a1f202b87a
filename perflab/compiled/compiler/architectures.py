"""The limits of each GPU architecture (registers, shared memory, warps), and the occupancy of a kernel. Pure.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the granularities are those of
NVIDIA's occupancy calculator, ``cuda_occupancy.h``, which Triton ships. A test compares this module with the latter.
"""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS_PER_SM = 65_536
"""The number of 32-bit registers of a multiprocessor, in four partitions; the same from sm_80 to sm_120."""
RESERVED_SHARED_BYTES = 1024
"""The bytes of each block's shared memory that the system reserves."""
TENSOR_COLUMNS = 512
"""The number of columns of tensor memory on a Blackwell data-center GPU, each of 128 lanes of 32 bits."""
_WARP = 32
_REGISTER_UNIT = 256
_PARTITIONS = 4
_SHARED_UNIT = 128


@dataclass(frozen=True)
class Architecture:
    """The limits of one multiprocessor of an architecture."""

    number: int
    """The compute capability without the dot: 90 is sm_90."""
    max_warps: int
    max_blocks: int
    shared_bytes: int

    @property
    def shared_limit_bytes(self) -> int:
        """The most shared memory that one block can have, in bytes."""
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
"""The architectures for which kernels can be compiled, by number: 90 is sm_90."""


def parse_architectures(text: str) -> tuple[int, ...]:
    """Parse architectures such as ``"80,90,100"`` or ``"sm_90"``; return their numbers in the order given.

    Raises:
        ValueError: an architecture is unknown, or none is named; the message lists the known ones.
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
    """Return how many blocks of a kernel are on a multiprocessor at once, and the resource that runs out first.

    The resource is ``registers``, ``shared memory``, ``tensor memory``, ``warps`` or ``blocks``. As in NVIDIA's
    calculator, registers are allocated to warps, in units of 256 and within a quarter of the multiprocessor, and shared
    memory to blocks, in units of 128 bytes. The result is an upper bound: a grid may be too small, and a launch may ask
    for another split of cache and shared memory.

    ``registers`` is per thread; ``num_warps``, ``shared_bytes`` (static and dynamic) and ``tensor_columns`` are per
    block. NVIDIA's calculator ignores columns: a block that exceeds them is resident, but waits for them.
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
