"""``perflab machine-code``: the kernels of a compiled file, and their loops in words.

The file is a cubin, or a library that holds cubins, such as PyTorch's ``libtorch_cuda.so``.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perflab.base.errors import KernelError
from perflab.compiled.compiler.architectures import ARCHITECTURES, occupancy
from perflab.compiled.machine.disassembly import Function, disassemble
from perflab.compiled.machine.reading import loop_lines, read_loops
from perflab.internals import of_triton as triton_internals

_PATIENCE_S = 600.0
_SYMBOL = re.compile(rb"\.text\.([\w$.]+)")
_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")


@dataclass(frozen=True)
class LibraryKernel:
    """A kernel that somebody else has compiled."""

    function: Function
    registers: int
    """The number of registers of a thread."""
    stack_bytes: int
    shared_bytes: int
    """The static shared memory of a block; a launch may add dynamic memory."""


def kernels_in(file: Path, arch: int, pattern: str, *, nvdisasm: str, cuobjdump: str) -> Iterator[LibraryKernel]:
    """Yield the kernels of a file whose mangled name matches a regular expression.

    Args:
        file: a cubin, or anything that cuobjdump takes apart; a library's cubins take disk space for the time being.
        arch: the architecture, for libraries that hold several.
        pattern: the regular expression, which may match any part of the name.
        nvdisasm: the path of NVIDIA's disassembler.
        cuobjdump: the path of NVIDIA's tool for files that hold cubins.

    Raises:
        KernelError: the file cannot be read, or has no such kernel.
    """
    if not file.is_file():
        raise KernelError(f"there is no file {file}", "name a cubin, or a library such as torch/lib/libtorch_cuda.so")
    wanted = re.compile(pattern)
    found = False
    with tempfile.TemporaryDirectory(prefix="perflab-cubins-") as folder:
        if file.suffix != ".cubin":
            _run([cuobjdump, "-arch", f"sm_{arch}", "-xelf", "all", str(file.absolute())], Path(folder))
        for cubin in [file] if file.suffix == ".cubin" else sorted(Path(folder).glob("*.cubin")):
            names = {name.decode() for name in _SYMBOL.findall(cubin.read_bytes())}
            if not any(wanted.search(name) for name in names):
                continue
            said = _run([cuobjdump, "-res-usage", str(cubin.absolute())], cubin.parent)
            usage = {name: tuple(map(int, numbers)) for name, *numbers in _USAGE.findall(said)}
            for function in disassemble(cubin, nvdisasm):
                if wanted.search(function.name) and function.name in usage:
                    found = True
                    yield LibraryKernel(function, *usage[function.name])
    if not found:
        where = file.name if file.suffix == ".cubin" else f"{file.name}, for sm_{arch},"
        raise KernelError(
            f"{where} has no kernel whose name matches {pattern!r}",
            "names are mangled; cuobjdump -res-usage lists them",
        )


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except subprocess.CalledProcessError as error:
        told = (error.stderr or error.stdout or str(error)).strip()
        raise KernelError(
            f"{Path(command[-1]).name} cannot be read: {told[:300]}", "name a cubin, or a library that holds cubins"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise KernelError(f"{command[0]} failed: {error}", "install triton or nvidia-cuda-cuobjdump") from error
    return done.stdout + done.stderr


def describe_kernels(file: Path, arch: int, pattern: str, *, num_warps: int, shared_bytes: int) -> Iterator[str]:
    """Yield lines on the kernels of a file whose names match, with how many of their blocks are there at once.

    ``num_warps`` and ``shared_bytes``, the dynamic shared memory, are those of a launch.

    Raises:
        KernelError: the file cannot be read, has no such kernel, or one for an architecture whose limits are not known.
    """
    tools = {tool: triton_internals.disassembler_path(tool) for tool in ("nvdisasm", "cuobjdump")}
    for kernel in kernels_in(file, arch, pattern, **tools):
        function, limits = kernel.function, ARCHITECTURES.get(kernel.function.arch)
        if limits is None:
            known = ", ".join(str(arch) for arch in ARCHITECTURES if isinstance(arch, int))
            raise KernelError(
                f"{function.name} is compiled for sm_{function.arch}, whose limits are not known",
                f"give a kernel for one of {known}",
            )
        shared = kernel.shared_bytes + shared_bytes
        blocks, _ = occupancy(limits, num_warps=num_warps, registers=kernel.registers, shared_bytes=shared)
        yield f"{function.name} [sm_{function.arch}]"
        yield f"  {kernel.registers} registers, {kernel.stack_bytes} B of stack, {blocks} blocks on a multiprocessor"
        loops = read_loops(function, num_warps=num_warps, blocks=blocks)
        yield from (f"  {line}" for line in loop_lines(loops, function.arch))
