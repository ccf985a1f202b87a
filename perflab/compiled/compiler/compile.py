"""Compiles one example for one architecture, along Triton's own path from launch to cubin, without a GPU.

What a launch would derive from its arguments (types, what divides by 16, what is compiled in) Triton's own binder says,
for the architecture that is compiled for instead of the one that is here. Runs in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import contextlib
import functools
import io
import subprocess
from typing import Any

from perflab.compiled.compiler.architectures import ARCHITECTURES
from perflab.compiled.compiler.example import KernelExample
from perflab.compiled.compiler.occupancy import occupancy
from perflab.compiled.compiler.resources import assembler_version, count_instructions, read_assembler, useful_lines
from perflab.compiled.records import CompiledKernel, KernelResources
from perflab.errors import KernelError

_LOG = "perflab-ptxas.log"
"""The assembler's words, kept beside the cubin in Triton's cache."""
Specialised = tuple[Any, dict[str, str], dict[tuple[int, ...], Any], dict[tuple[int, ...], Any]]
"""Triton's options, signature, compile-time constants and attributes."""


def compile_example(registration: str, example: KernelExample, arch: int) -> CompiledKernel:
    """Compile the example; what does not compile is a result, with what the compiler said.

    Raises:
        KernelError: there is nothing here that could compile it.
    """
    import triton

    _check(example)
    try:
        resources, problem = _resources(example, arch), None
    except Exception as error:
        resources, problem = None, _words(error, arch)
    return CompiledKernel(
        registration=registration,
        name=example.name,
        arch=arch,
        triton=triton.__version__,
        resources=resources,
        problem=problem,
    )


def specialise(example: KernelExample, arch: int) -> Specialised:
    """What a launch with the example's arguments hands to the compiler, on that architecture."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel = example.kernel
    backend = make_backend(GPUTarget("cuda", arch, 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    given = {
        **example.arguments,
        "num_warps": example.num_warps,
        "num_stages": example.num_stages,
        "debug": bool(kernel.debug),
        **example.options,
    }
    bound, specialisation, options = bind(**given)
    packed: Specialised = kernel._pack_args(backend, given, bound, specialisation, options)
    return packed


def _resources(example: KernelExample, arch: int) -> KernelResources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options, signature, constants, attributes = specialise(example, arch)
    compiled = triton.compile(
        ASTSource(example.kernel, signature, constants, attributes),
        target=GPUTarget("cuda", arch, 32),
        options=options.__dict__,
    )
    report = read_assembler(_assembler_log(compiled, options, arch))
    limits, metadata = ARCHITECTURES[arch], compiled.metadata
    columns = getattr(metadata, "tmem_size", None) or 0
    shared_bytes = report.static_shared_bytes + metadata.shared
    fits = occupancy(
        limits,
        num_warps=metadata.num_warps,
        registers=report.registers,
        shared_bytes=shared_bytes,
        tensor_columns=columns,
    )
    return KernelResources(
        ptxas=_ptxas_version(arch),
        num_warps=metadata.num_warps,
        num_stages=metadata.num_stages,
        registers=report.registers,
        stack_bytes=report.stack_bytes,
        spill_store_bytes=report.spill_store_bytes,
        spill_load_bytes=report.spill_load_bytes,
        static_shared_bytes=report.static_shared_bytes,
        dynamic_shared_bytes=metadata.shared,
        shared_limit_bytes=limits.shared_limit_bytes,
        tensor_columns=columns,
        instructions=count_instructions(compiled.asm["ptx"]),
        blocks_per_sm=fits.blocks,
        warps_per_sm=fits.warps,
        max_warps_per_sm=limits.max_warps,
        limited_by=fits.limited_by,
    )


def _assembler_log(compiled: Any, options: Any, arch: int) -> str:
    """What ptxas says of the kernel. Triton keeps no log, so the same command is run once more on the same PTX."""
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.cache import get_cache_manager

    cache = get_cache_manager(compiled.hash)
    kept = cache.get_file(_LOG)
    if kept is not None:
        with open(kept, encoding="utf-8") as file:
            return file.read()
    said = io.StringIO()
    with knobs.nvidia.scope(), contextlib.redirect_stdout(said):
        knobs.nvidia.dump_ptxas_log = True
        make_backend(GPUTarget("cuda", arch, 32)).make_cubin(compiled.asm["ptx"], {}, options, arch)
    cache.put(said.getvalue(), _LOG, binary=False)
    return said.getvalue()


@functools.cache
def _ptxas_version(arch: int) -> str:
    from triton.backends.nvidia.compiler import get_ptxas

    command = [get_ptxas(arch).path, "--version"]
    return assembler_version(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _check(example: KernelExample) -> None:
    from triton.backends import backends
    from triton.runtime.jit import JITFunction

    if "nvidia" not in backends:
        raise KernelError("this Triton has no NVIDIA compiler", "install triton from PyPI: pip install triton")
    if not isinstance(example.kernel, JITFunction):
        raise KernelError(
            f"kernel example {example.name!r} was decorated for Triton's interpreter, which compiles nothing",
            "set TRITON_INTERPRET in a conftest.py, not in what the module of the registration imports",
        )


def _words(error: Exception, arch: int) -> str:
    """What a person needs of an error while compiling."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import PTXASError

    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, CompilationError):
            error = inner  # of a function that the kernel calls: the innermost one names the line
        inner = inner.__cause__ or inner.__context__
    if isinstance(error, CompilationError):
        node, source = error.node, (error.src or "").splitlines()
        line = source[node.lineno - 1].strip() if 0 < getattr(node, "lineno", 0) <= len(source) else ""
        why = error.error_message or str(error.__cause__ or type(error).__name__)
        return "\n".join(part for part in (useful_lines(why), f"in: {line}" if line else "") if part)
    if isinstance(error, PTXASError) and "is not defined for option 'gpu-name'" in str(error):
        return f"ptxas {_ptxas_version(arch)}, which Triton uses, does not know sm_{arch}"
    return useful_lines(f"{type(error).__name__}: {error}")
