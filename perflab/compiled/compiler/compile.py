"""Compiles one example for one architecture, along Triton's own path from launch to machine code, without a GPU.

Triton's own binder derives what a launch would derive from its arguments (types, divisibility by 16, compile-time
constants), for the target architecture instead of the one that is present. Runs in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perflab.base.data import changed
from perflab.base.errors import KernelError, with_causes
from perflab.base.gpu_names import Arch, name_of_arch
from perflab.compiled.compiler.architectures import ARCHITECTURES, occupancy, occupancy_on_amd
from perflab.compiled.compiler.example import KernelExample
from perflab.compiled.compiler.resources import (
    assembler_version,
    count_instructions,
    read_amdgcn,
    read_assembler,
    read_remarks,
    useful_lines,
)
from perflab.compiled.machine.disassembly import disassemble
from perflab.compiled.machine.reading import read_loops
from perflab.internals import of_triton as triton_internals
from perflab.internals.lookup import switched_off
from perflab.internals.of_triton import Specialised
from perflab.results.compiled import CompiledKernel, KernelResources, LoopCounts

_LOG = "perflab-ptxas.log"
"""The name of the file with the assembler's log, beside the cubin in Triton's cache."""
_PTXAS_S = 60.0
"""The time in seconds that the assembler may take to print its version."""


def compile_example(
    registration: str, example: KernelExample, arch: Arch, siblings: Iterable[KernelExample] = ()
) -> CompiledKernel:
    """Compile the example; a kernel that does not compile gives a result with the compiler's message.

    ``siblings`` are the registered examples. If a configuration cannot run and the autotuner would try another one,
    other configurations of the same example are compiled until one can run; the first configuration is then marked as
    passed over.

    Raises:
        KernelError: there is no compiler for the kernel.
        InternalsError: this version of Triton lacks an internal that perflab uses.
    """
    compiled, refused = _compiled(registration, example, arch)
    if example.tuned is None or _runs(compiled) or (compiled.resources is None and not refused):
        return compiled
    others = (one for one in siblings if one.tuned == example.tuned and one.name != example.name)
    return changed(compiled, passed_over=any(_runs(_compiled(registration, one, arch)[0]) for one in others))


def _runs(kernel: CompiledKernel) -> bool:
    return kernel.resources is not None and kernel.resources.fits


def _compiled(registration: str, example: KernelExample, arch: Arch) -> tuple[CompiledKernel, bool]:
    """Return the compiled kernel, and whether it failed with an error after which an autotuner tries the next one."""
    import triton

    _check(example, arch)
    refused = False
    try:
        resources, problem = _resources(example, arch), None
    except Exception as error:
        off = switched_off(error)
        if off is not None:
            raise off from error  # the fault is not the kernel's: its resources are simply unknown
        resources, problem, refused = None, _words(error, arch), triton_internals.tuner_passes_over(error)
    compiled = CompiledKernel(
        registration=registration,
        name=example.name,
        arch=arch,
        triton=triton.__version__,
        resources=resources,
        problem=problem,
        tuned=example.tuned,
    )
    return compiled, refused


def specialise(example: KernelExample, arch: Arch) -> Specialised:
    """Return the specialised arguments that a launch of the example passes to the compiler on that architecture."""
    launch = {"num_warps": example.num_warps, "num_stages": example.num_stages, **example.options}
    return triton_internals.specialise(example.kernel, {**example.arguments, **launch}, arch)


def _resources(example: KernelExample, arch: Arch) -> KernelResources:
    specialised = specialise(example, arch)
    compiled = triton_internals.compile_for(example.kernel, specialised, arch)
    limits, metadata = ARCHITECTURES[arch], compiled.metadata
    warps, columns, assembler = metadata.num_warps, 0, ""
    loops: list[LoopCounts] = []
    remarks: list[str] = []
    if isinstance(arch, str):
        report, waves_per_simd = read_amdgcn(compiled.asm["amdgcn"])
        shared_bytes = report["static_shared_bytes"] + metadata.shared
        blocks, limited_by = occupancy_on_amd(
            limits, num_warps=warps, waves_per_simd=waves_per_simd, shared_bytes=shared_bytes
        )
    else:
        log = _assembler_log(compiled, specialised.options, arch)
        report, remarks = read_assembler(log), read_remarks(log)
        columns, assembler = triton_internals.tensor_columns(metadata), _ptxas_version(arch)
        blocks, limited_by = occupancy(
            limits,
            num_warps=warps,
            registers=report["registers"],
            shared_bytes=report["static_shared_bytes"] + metadata.shared,
            tensor_columns=columns,
        )
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder, "kernel.cubin")
            cubin.write_bytes(compiled.asm["cubin"])
            own, *_called = disassemble(cubin, triton_internals.disassembler_path())
        loops = read_loops(own, num_warps=warps, blocks=blocks)
    return KernelResources(
        ptxas=assembler,
        num_warps=warps,
        num_stages=metadata.num_stages,
        **report,
        dynamic_shared_bytes=metadata.shared,
        shared_limit_bytes=limits.shared_limit_bytes,
        tensor_columns=columns,
        instructions=count_instructions(compiled.asm["amdgcn" if isinstance(arch, str) else "ptx"]),
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        max_warps_per_sm=limits.max_warps,
        limited_by=limited_by,
        loops=loops,
        remarks=remarks,
    )


def _assembler_log(compiled: Any, options: Any, arch: int) -> str:
    """Return the log of ptxas for the kernel, from Triton's cache if it is there."""
    cache = triton_internals.cache_beside(compiled)
    kept = cache.get_file(_LOG)
    if kept is not None:
        with open(kept, encoding="utf-8") as file:
            return file.read()
    said = triton_internals.assembler_log(compiled, options, arch)
    cache.put(said, _LOG, binary=False)
    return said


@functools.cache
def _ptxas_version(arch: int) -> str:
    command = [triton_internals.assembler_path(arch), "--version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_PTXAS_S, check=True).stdout
    except subprocess.TimeoutExpired:
        raise KernelError(
            f"{command[0]} did not tell its version within {_PTXAS_S:g} s", "run it by hand: ptxas --version"
        ) from None
    return assembler_version(said)


def _check(example: KernelExample, arch: Arch) -> None:
    if not triton_internals.compiles_for(arch):
        raise KernelError(
            f"this Triton has no compiler for {name_of_arch(arch)}", "install triton from PyPI: pip install triton"
        )
    if not triton_internals.is_jitted(example.kernel):
        raise KernelError(
            f"kernel example {example.name!r} was decorated for Triton's interpreter, which compiles nothing",
            "set TRITON_INTERPRET in a conftest.py, not in what the module of the registration imports",
        )


def _words(error: Any, arch: Arch) -> str:
    """Return the useful part of a compilation error: the message, and the line of the kernel that it is about."""
    for inner in with_causes(error):
        if triton_internals.is_compilation_error(inner):
            error = inner  # for an error in a function that the kernel calls, the innermost error names the line
    if triton_internals.is_compilation_error(error):
        node, source = error.node, (error.src or "").splitlines()
        line = source[node.lineno - 1].strip() if 0 < getattr(node, "lineno", 0) <= len(source) else ""
        why = error.error_message or str(error.__cause__ or type(error).__name__)
        return "\n".join(part for part in (useful_lines(why), f"in: {line}" if line else "") if part)
    if (
        isinstance(arch, int)
        and triton_internals.is_assembler_error(error)
        and "is not defined for option 'gpu-name'" in str(error)
    ):
        return f"ptxas {_ptxas_version(arch)}, which Triton uses, does not know sm_{arch}"
    return useful_lines(f"{type(error).__name__}: {error}")
