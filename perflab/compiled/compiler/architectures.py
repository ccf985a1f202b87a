"""The limits of each GPU architecture (registers, shared memory, warps), and the occupancy of a kernel. Pure.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the granularities are those of
NVIDIA's occupancy calculator, ``cuda_occupancy.h``, which Triton ships. A test compares this module with the latter.
AMD's limits: LLVM's ``AMDGPUBaseInfo.cpp`` (waves of a SIMD, work-groups of a compute unit, granularity of LDS), and
the white papers of CDNA 3 (64 KiB of LDS in a compute unit) and CDNA 4 (160 KiB).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perflab.base.gpu_names import Arch

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
    """The limits of one multiprocessor (AMD: compute unit) of an architecture."""

    number: Arch
    max_warps: int
    max_blocks: int
    shared_bytes: int
    reserved_bytes: int = RESERVED_SHARED_BYTES
    """The bytes that the system reserves of each block's shared memory; AMD's reserves none."""
    shared_unit_bytes: int = _SHARED_UNIT
    """Shared memory is given to blocks in multiples of this size."""

    @property
    def shared_limit_bytes(self) -> int:
        """The most shared memory that one block can have, in bytes."""
        return self.shared_bytes - self.reserved_bytes

    def blocks_by_shared(self, shared_bytes: int) -> dict[str, int]:
        """Return how many blocks there is shared memory for, by the name of the resource; empty: it sets no limit."""
        taken = _round_up(shared_bytes + self.reserved_bytes, self.shared_unit_bytes)
        return {"shared memory": self.shared_bytes // taken} if taken else {}


def _amd(name: str, shared_bytes: int, shared_unit_bytes: int) -> Architecture:
    """Return an architecture of CDNA: 4 SIMDs of 8 waves in a compute unit, and barriers for 16 work-groups."""
    return Architecture(name, 32, 16, shared_bytes, reserved_bytes=0, shared_unit_bytes=shared_unit_bytes)


ARCHITECTURES: dict[Arch, Architecture] = {
    a.number: a
    for a in (
        Architecture(80, max_warps=64, max_blocks=32, shared_bytes=164 * 1024),  # A100
        Architecture(86, max_warps=48, max_blocks=16, shared_bytes=100 * 1024),  # A10, RTX 30
        Architecture(89, max_warps=48, max_blocks=24, shared_bytes=100 * 1024),  # L4, L40S, RTX 40
        Architecture(90, max_warps=64, max_blocks=32, shared_bytes=228 * 1024),  # H100, H200
        Architecture(100, max_warps=64, max_blocks=32, shared_bytes=228 * 1024),  # B200
        Architecture(103, max_warps=64, max_blocks=32, shared_bytes=228 * 1024),  # B300
        Architecture(120, max_warps=48, max_blocks=24, shared_bytes=100 * 1024),  # RTX 50
        _amd("gfx942", 64 * 1024, 512),  # MI300A, MI300X, MI325X
        _amd("gfx950", 160 * 1024, 1280),  # MI350X, MI355X
    )
}
"""The architectures for which kernels can be compiled: NVIDIA's by number (90 is sm_90), AMD's by name."""


def parse_architectures(text: str) -> tuple[Arch, ...]:
    """Parse architectures such as ``"80,90,100"``, ``"sm_90"`` or ``"gfx942"``; return them in the order given.

    Raises:
        ValueError: an architecture is unknown, or none is named; the message lists the known ones.
    """
    parts = [part for part in text.replace(",", " ").split() if part]
    by_name = {str(arch): arch for arch in ARCHITECTURES}
    known = ", ".join(by_name)
    found = [by_name.get(re.sub(r"^sm_?(\d+)a?$|^(\d+)a$", r"\1\2", part.lower())) for part in parts]
    for part, arch in zip(parts, found, strict=True):
        if arch is None:
            raise ValueError(f"{part!r} is not an architecture that perflab has limits of; known are {known}")
    if not parts:
        raise ValueError(f"no architecture is named; known are {known}")
    return tuple(dict.fromkeys(arch for arch in found if arch is not None))


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
    limits = {
        "warps": architecture.max_warps // num_warps,
        "registers": warps_by_registers // num_warps,
        **architecture.blocks_by_shared(shared_bytes),
        "blocks": architecture.max_blocks,
        **({"tensor memory": TENSOR_COLUMNS // tensor_columns} if tensor_columns else {}),
    }
    limited_by = min(limits, key=lambda name: limits[name])
    return limits[limited_by], limited_by


def occupancy_on_amd(
    architecture: Architecture, *, num_warps: int, waves_per_simd: int, shared_bytes: int
) -> tuple[int, str]:
    """Return how many blocks of a kernel are on a compute unit at once, and the resource that runs out first.

    The resource is ``registers``, ``shared memory``, ``warps`` (waves) or ``blocks``. ``waves_per_simd`` is what the
    compiler says that registers allow; ``shared_bytes`` is the LDS of a block. Barriers limit the number of blocks; a
    block of one wave needs none.
    """
    limits = {
        "warps": architecture.max_warps // num_warps,
        "registers": _PARTITIONS * waves_per_simd // num_warps,
        **architecture.blocks_by_shared(shared_bytes),
        **({"blocks": architecture.max_blocks} if num_warps > 1 else {}),
    }
    limited_by = min(limits, key=lambda name: limits[name])
    return limits[limited_by], limited_by


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
