"""All private and undocumented parts of Triton that perflab uses; no other module of perflab names any.

Triton documents the API for writing kernels (``@triton.jit``, ``triton.autotune``, ``triton.language``), but not the
steps from a launch to machine code. The private parts were checked with Triton 3.9.0, by all tests; in the files of
3.6.0, 3.7.0 and 3.8.0 each name was looked up, and nothing was run. A name that the installed version lacks raises an
``InternalsError``. Importing this module loads no Triton; calling its functions does, except those on the interpreter.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from perflab.base.gpu_names import Arch
from perflab.internals.lookup import TRITON, attribute, lookup, needs

_COMPILE = "compile a kernel without a GPU"
_LOG = "read what the assembler says of a kernel"
_LOOPS = "read the machine code of a kernel"
_INTERPRETER = "tell whether the interpreter runs a kernel"
_LAUNCHES = "tell which machine code a call launches"
_TUNER = "know the configurations of an autotuned kernel"

NO_GPU = "0 active drivers"
"""A part of Triton's error for a launch without a GPU (``triton/runtime/driver.py``). An error with another text is
shown unchanged, without the line of the launch."""


class Specialised(NamedTuple):
    """The specialised arguments that a launch passes to the compiler."""

    options: Any
    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]


def backend_for(arch: Arch) -> Any:
    """Return the compiler for an architecture. A launch asks the driver for it, which needs a GPU."""
    return lookup(TRITON, "triton.compiler:make_backend", _COMPILE)(_target(arch))


def _target(arch: Arch) -> Any:
    target = lookup(TRITON, "triton.backends.compiler:GPUTarget", _COMPILE)
    return target("cuda", arch, 32) if isinstance(arch, int) else target("hip", arch, 64)


def specialise(kernel: Any, given: Mapping[str, Any], arch: Arch) -> Specialised:
    """Derive types, divisibility by 16 and compile-time constants from a launch's arguments, by Triton's launch code.

    Args:
        kernel: the object that ``@triton.jit`` made.
        given: the kernel's arguments and the launch's options, by name.
        arch: the architecture.

    ``kernel.warmup``, the documented way to compile without running, needs a current device and its stream.
    """
    to = "specialise a kernel by its arguments as a launch does"
    binder = lookup(TRITON, "triton.runtime.jit:create_function_from_signature", to)
    pack = lookup(TRITON, "triton.runtime.jit:JITFunction._pack_args", to)
    backend = backend_for(arch)
    signature, parameters = attribute(TRITON, kernel, "signature", to), attribute(TRITON, kernel, "params", to)
    options = {"debug": bool(attribute(TRITON, kernel, "debug", to)), **given}
    bound, specialisation, rest = binder(signature, parameters, backend)(**options)
    return Specialised(*pack(kernel, backend, options, bound, specialisation, rest))


def compile_for(kernel: Any, specialised: Specialised, arch: Arch) -> Any:
    """Return the compiled kernel, with ``asm``, ``metadata`` and ``hash``. ``triton.compile`` is undocumented too."""
    is_gluon = getattr(kernel, "is_gluon", lambda: False)()
    name = "triton.experimental.gluon._runtime:GluonASTSource" if is_gluon else "triton.compiler:ASTSource"
    of_ast = lookup(TRITON, name, _COMPILE)
    source = of_ast(kernel, specialised.signature, specialised.constants, specialised.attributes)
    return lookup(TRITON, "triton:compile", _COMPILE)(
        source, target=_target(arch), options=specialised.options.__dict__
    )


@contextmanager
def launches_seen() -> Iterator[list[Any]]:
    """Yield a list that gets the compiled kernel of each launch in the block, from any thread, by Triton's launcher.

    The launcher asks the kernel for ``launch_metadata`` each time. A hook for launches, the documented way, is told the
    name alone. Kernels that torch.compile made are launched by PyTorch's own launcher, which does not ask.
    """
    owner = lookup(TRITON, "triton.compiler:CompiledKernel", _LAUNCHES)
    before = attribute(TRITON, owner, "launch_metadata", _LAUNCHES)
    seen: list[Any] = []

    def noted(kernel: Any, *arguments: Any) -> Any:
        seen.append(kernel)
        return before(kernel, *arguments)

    owner.launch_metadata = noted
    try:
        yield seen
    finally:
        owner.launch_metadata = before


def machine_code_of(compiled: Any) -> tuple[bytes, int, int]:
    """Return a compiled kernel's binary (ELF), the warps of a block, and its dynamic shared memory in bytes."""
    metadata = attribute(TRITON, compiled, "metadata", _LAUNCHES)
    return bytes(attribute(TRITON, compiled, "kernel", _LAUNCHES)), int(metadata.num_warps), int(metadata.shared)


def tensor_columns(metadata: Any) -> int:
    """Return the columns of tensor memory that a kernel uses; 0 on an architecture without tensor memory."""
    return attribute(TRITON, metadata, "tmem_size", "tell how many blocks tensor memory has room for") or 0


def cache_beside(compiled: Any) -> Any:
    """Return Triton's cache entry of this kernel, with ``get_file`` and ``put``; its files move and vanish together."""
    to = "keep what the assembler said"
    return lookup(TRITON, "triton.runtime.cache:get_cache_manager", to)(attribute(TRITON, compiled, "hash", to))


@needs(TRITON, "triton:knobs.nvidia.dump_ptxas_log", "triton:knobs.nvidia.scope", to=_LOG)
def assembler_log(compiled: Any, options: Any, arch: int) -> str:
    """Return ptxas's log for the kernel. Triton keeps no log, so ptxas is run once more on the same PTX.

    The documented switch, TRITON_DUMP_PTXAS_LOG, is read once and applies to every compilation.
    """
    from triton import knobs

    make_cubin = attribute(TRITON, backend_for(arch), "make_cubin", _LOG)
    said = io.StringIO()
    with knobs.nvidia.scope(), contextlib.redirect_stdout(said):
        knobs.nvidia.dump_ptxas_log = True
        make_cubin(compiled.asm["ptx"], {}, options, arch)
    return said.getvalue()


def assembler_path(arch: int) -> str:
    """Return the path of the ptxas that Triton uses for an architecture; Triton includes several."""
    to = "name the assembler that a kernel went through"
    return str(lookup(TRITON, "triton.backends.nvidia.compiler:get_ptxas", to)(arch).path)


def disassembler_path(tool: str = "nvdisasm") -> str:
    """Return the path of the ``nvdisasm`` or ``cuobjdump`` that Triton includes, or that its documented knob names."""
    nvidia = lookup(TRITON, "triton:knobs", _LOOPS).nvidia
    return str(attribute(TRITON, attribute(TRITON, nvidia, tool, _LOOPS), "path", _LOOPS))


def compiles_for(arch: Arch) -> bool:
    """Whether this Triton was built with the compiler of the architecture's vendor."""
    backends = lookup(TRITON, "triton.backends:backends", "tell whether there is a compiler for a GPU")
    return ("nvidia" if isinstance(arch, int) else "amd") in backends


def is_jitted(kernel: object) -> bool:
    """Whether ``@triton.jit`` made the kernel for compilation, not interpretation. ``JITFunction`` is undocumented."""
    return isinstance(kernel, lookup(TRITON, "triton.runtime.jit:JITFunction", "tell kernels that can be compiled"))


def is_compilation_error(error: object) -> bool:
    """Whether the compiler refused a line; ``node``, ``src`` and ``error_message`` of the error name line and cause."""
    to = "say which line does not compile"
    return isinstance(error, lookup(TRITON, "triton.compiler.errors:CompilationError", to))


def is_assembler_error(error: object) -> bool:
    """Whether the error says that ptxas refused the compiler's output."""
    return isinstance(error, lookup(TRITON, "triton.runtime.errors:PTXASError", "say that the assembler is too old"))


def tuner_passes_over(error: object) -> bool:
    """Whether the autotuner skips the configuration after this error, as it does after a lack of resources."""
    passed_over = ("triton.compiler.errors:CompileTimeAssertionFailure", "triton.runtime.errors:PTXASError")
    return isinstance(error, tuple(lookup(TRITON, one, _TUNER) for one in passed_over))


def is_autotuner(kernel: object) -> bool:
    """Whether ``@triton.autotune`` made the kernel."""
    return isinstance(kernel, lookup(TRITON, "triton.runtime.autotuner:Autotuner", _TUNER))


def has_heuristics(kernel: object) -> bool:
    """Whether ``@triton.heuristics`` made the kernel."""
    return isinstance(kernel, lookup(TRITON, "triton.runtime.autotuner:Heuristics", _TUNER))


def below(kernel: Any) -> Any:
    """Return the object that ``@triton.autotune`` or ``@triton.heuristics`` decorated."""
    return attribute(TRITON, kernel, "fn", _TUNER)


def heuristics_of(kernel: Any) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
    """Return parameter -> function of all arguments, for a kernel with heuristics."""
    return dict(attribute(TRITON, kernel, "values", _TUNER))


def configs_of(tuner: Any) -> list[Any]:
    """Return the ``triton.Config`` objects of an autotuned kernel, in their order."""
    return list(attribute(TRITON, tuner, "configs", _TUNER))


def parameters_of(tuner: Any) -> list[str]:
    """Return the names of an autotuned kernel's parameters, in their order."""
    return list(attribute(TRITON, tuner, "arg_names", _TUNER))


def pruning_of(tuner: Any) -> Callable[..., Any] | None:
    """Return ``early_config_prune`` of ``prune_configs_by``; None if the tuner has none."""
    found: Callable[..., Any] | None = attribute(TRITON, tuner, "early_config_prune", _TUNER)
    return found


@contextmanager
def tuner_held_to(tuner: Any, config: Any, before: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Make each launch of an autotuned kernel in the block run ``config``, after ``before(arguments by name)``."""
    configs, names = attribute(TRITON, tuner, "configs", _TUNER), parameters_of(tuner)
    run = attribute(TRITON, tuner, "run", _TUNER)

    def run_one(*arguments: Any, **keywords: Any) -> Any:
        before({**dict(zip(names, arguments, strict=False)), **keywords})
        return run(*arguments, **keywords)

    tuner.configs, tuner.run = [config], run_one  # a single configuration leaves no choice
    try:
        yield
    finally:
        tuner.configs = configs
        del tuner.run


def interpreter_is_loaded() -> bool:
    """Whether Triton's interpreter is loaded. Its documented switch, TRITON_INTERPRET, may be set without any use."""
    return "triton.runtime.interpreter" in sys.modules


def interpreter_has_run() -> bool:
    """Whether Triton's interpreter has run a kernel in this process."""
    return bool(attribute(TRITON, _interpreted(), "rewritten_fn", _INTERPRETER))


@contextmanager
def interpreter_replaced(run: Callable[..., Any]) -> Iterator[None]:
    """Replace the interpreter's method that runs a kernel with ``run`` in the block."""
    interpreted = _interpreted()
    before = attribute(TRITON, interpreted, "run", _INTERPRETER)
    interpreted.run = run
    try:
        yield
    finally:
        interpreted.run = before


def _interpreted() -> Any:
    return attribute(TRITON, sys.modules["triton.runtime.interpreter"], "InterpretedFunction", _INTERPRETER)
