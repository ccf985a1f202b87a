"""``perflab machine-code``: the loops of kernels in a compiled file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perflab.base.errors import KernelError
from perflab.compiled.compiler.architectures import ARCHITECTURES, occupancy
from perflab.compiled.machine.library import LibraryKernel, kernels_in
from perflab.compiled.machine.reading import read_loops
from perflab.compiled.machine.telling import loop_lines
from perflab.internals import of_triton as triton_internals
from perflab.results.compiled import LoopCounts


def described(kernel: LibraryKernel, *, num_warps: int, shared_bytes: int) -> tuple[int, list[LoopCounts]]:
    """Return how many of a kernel's blocks are on a multiprocessor at once, and its loops.

    ``num_warps`` and ``shared_bytes``, the dynamic shared memory, are those of a launch.

    Raises:
        KernelError: the limits of the kernel's architecture are not known.
    """
    limits = ARCHITECTURES.get(kernel.function.arch)
    if limits is None:
        known = ", ".join(str(arch) for arch in ARCHITECTURES if isinstance(arch, int))
        raise KernelError(
            f"{kernel.function.name} is compiled for sm_{kernel.function.arch}, whose limits are not known",
            f"give a kernel for one of {known}",
        )
    blocks, _ = occupancy(
        limits,
        num_warps=num_warps,
        registers=kernel.registers,
        shared_bytes=kernel.shared_bytes + shared_bytes,
    )
    return blocks, read_loops([kernel.function], num_warps=num_warps, blocks=blocks)


def describe_kernels(file: Path, arch: int, pattern: str, *, num_warps: int, shared_bytes: int) -> Iterator[str]:
    """Yield lines on the kernels of a file whose names match.

    Raises:
        KernelError: the file cannot be read, or has no such kernel.
    """
    tools = {tool: triton_internals.disassembler_path(tool) for tool in ("nvdisasm", "cuobjdump")}
    for kernel in kernels_in(file, arch, pattern, **tools):
        blocks, loops = described(kernel, num_warps=num_warps, shared_bytes=shared_bytes)
        yield f"{kernel.function.name} [sm_{kernel.function.arch}]"
        yield f"  {kernel.registers} registers, {kernel.stack_bytes} B of stack, {blocks} blocks on a multiprocessor"
        yield from (f"  {line}" for line in loop_lines(loops, kernel.function.arch))
