"""Data sheet: the registers, shared memory and warps of each GPU architecture. Pure data.

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
