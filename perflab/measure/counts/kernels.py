"""Notes which Triton kernels a call launches, each with a digest of its machine code."""

from __future__ import annotations

import hashlib
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from perflab.base.errors import InternalsError
from perflab.internals import of_triton
from perflab.results.measurement import LaunchedKernel

_PROGRAM = 1
"""The type of an ELF section that the program defines (SHT_PROGBITS)."""
_LOADED = 2
"""The flag of an ELF section that is loaded (SHF_ALLOC); debug information is not."""


@contextmanager
def kernels_launched(into: list[LaunchedKernel]) -> Iterator[None]:
    """Add the Triton kernels that the block launches to ``into``, by name. Nothing is added if this Triton is unknown.

    Kernels in a CUDA graph, and those that torch.compile made, are launched by others and not seen.
    """
    seen: list[Any] = []
    with ExitStack() as around:
        if "triton" in sys.modules:
            with suppress(InternalsError):
                seen = around.enter_context(of_triton.launches_seen())
        yield
    with suppress(InternalsError):
        digests = {id(one): digest_of(*of_triton.machine_code_of(one)) for one in seen}
        counted = Counter((str(one.name), digests[id(one)]) for one in seen)
        into += [
            LaunchedKernel(name=name, digest=digest, launches=many) for (name, digest), many in sorted(counted.items())
        ]


def digest_of(binary: bytes, num_warps: int, shared_bytes: int) -> str:
    """Return the SHA-256 of what a GPU loads of a kernel: code, constants, registers, warps, dynamic shared memory.

    Names, lines and paths stand in other sections of the file (64-bit ELF, little-endian: NVIDIA's and AMD's), except
    those of ``tl.device_assert`` under ``debug=True``, which a kernel prints. Of any other file all bytes count.
    """
    found = hashlib.sha256(f"{num_warps} {shared_bytes}".encode())
    if not binary.startswith(b"\x7fELF"):
        found.update(binary)
        return found.hexdigest()
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, number = struct.unpack_from("<HH", binary, 0x3A)
    for place in range(number):
        header = struct.unpack_from("<IIQQQQIIQQ", binary, table + place * size)
        kind, flags, offset, length, info = header[1], header[2], header[4], header[5], header[7]
        if kind == _PROGRAM and flags & _LOADED:
            found.update(struct.pack("<BQ", info >> 24, length))  # NVIDIA's files note the registers of code there
            found.update(binary[offset : offset + length])
    return found.hexdigest()
