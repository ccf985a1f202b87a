"""Triton's private and undocumented parts that perflab uses: all of them, and nothing else of perflab names any.

Documented is what kernels are written with (``@triton.jit``, ``triton.autotune``, ``triton.language``), and nothing of
the way from a launch to machine code. They were checked with Triton 3.9.0, by all tests; in the files of 3.6.0, 3.7.0
and 3.8.0 each name was looked up, and nothing was run. A name that the installed version does not have is an
``InternalsError``. Importing this module loads no Triton; using what is in it does, save what asks for the interpreter.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from perflab.internals import TRITON, attribute, needs

_COMPILE = "compile a kernel without a GPU"
_LOG = "read what the assembler says of a kernel"
_INTERPRETER = "tell whether the interpreter runs a kernel"
_TUNER = "know the configurations of an autotuned kernel"

NO_GPU = "0 active drivers"
"""What Triton says of a launch that finds no GPU (``triton/runtime/driver.py``). If it says another thing, the error is
shown as it is, without the line of the launch."""


class Specialised(NamedTuple):
    """What a launch hands to the compiler."""

    options: Any
    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]


@needs(TRITON, "triton.backends.compiler:GPUTarget", "triton.compiler:make_backend", to=_COMPILE)
def backend_for(arch: int) -> Any:
    """NVIDIA's compiler for an architecture. A launch asks the driver which one it is, and there is none here."""
    from triton.compiler import make_backend

    return make_backend(_target(arch))


def _target(arch: int) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", arch, 32)


@needs(
    TRITON,
    "triton.runtime.jit:create_function_from_signature",
    "triton.runtime.jit:JITFunction._pack_args",
    to="specialise a kernel by its arguments as a launch does",
)
def specialise(kernel: Any, given: Mapping[str, Any], arch: int) -> Specialised:
    """Types, what divides by 16, what is compiled in: derived from a launch's arguments, by what launches.

    Args:
        kernel: what ``@triton.jit`` made.
        given: its arguments and the launch's options, by name.
        arch: 90 for sm_90.

    ``kernel.warmup`` is the documented way to compile without running, and asks for a current device and its stream.
    """
    from triton.runtime.jit import create_function_from_signature

    backend = backend_for(arch)
    to = "specialise a kernel by its arguments as a launch does"
    signature, parameters = attribute(TRITON, kernel, "signature", to), attribute(TRITON, kernel, "params", to)
    options = {"debug": bool(attribute(TRITON, kernel, "debug", to)), **given}
    bound, specialisation, rest = create_function_from_signature(signature, parameters, backend)(**options)
    return Specialised(*kernel._pack_args(backend, options, bound, specialisation, rest))


@needs(TRITON, "triton:compile", "triton.compiler:ASTSource", to=_COMPILE)
def compile_for(kernel: Any, specialised: Specialised, arch: int) -> Any:
    """The compiled kernel, with ``asm``, ``metadata`` and ``hash``. ``triton.compile`` is listed nowhere either."""
    import triton
    from triton.compiler import ASTSource

    source = ASTSource(kernel, specialised.signature, specialised.constants, specialised.attributes)
    return triton.compile(source, target=_target(arch), options=specialised.options.__dict__)


def tensor_columns(metadata: Any) -> int:
    """Columns of tensor memory that a kernel takes; an architecture without any says None."""
    return attribute(TRITON, metadata, "tmem_size", "tell how many blocks tensor memory has room for") or 0


@needs(TRITON, "triton.runtime.cache:get_cache_manager", to="keep what the assembler said")
def cache_beside(compiled: Any) -> Any:
    """Where Triton keeps this kernel: ``get_file`` and ``put``. It forgets when Triton does, and moves with it."""
    from triton.runtime.cache import get_cache_manager

    return get_cache_manager(attribute(TRITON, compiled, "hash", "keep what the assembler said"))


@needs(TRITON, "triton:knobs.nvidia.dump_ptxas_log", "triton:knobs.nvidia.scope", to=_LOG)
def assembler_log(compiled: Any, options: Any, arch: int) -> str:
    """What ptxas says of the kernel. Triton keeps no log, so the same command is run once more on the same PTX.

    TRITON_DUMP_PTXAS_LOG is the documented switch: read once, and for everything that is compiled.
    """
    from triton import knobs

    make_cubin = attribute(TRITON, backend_for(arch), "make_cubin", _LOG)
    said = io.StringIO()
    with knobs.nvidia.scope(), contextlib.redirect_stdout(said):
        knobs.nvidia.dump_ptxas_log = True
        make_cubin(compiled.asm["ptx"], {}, options, arch)
    return said.getvalue()


@needs(TRITON, "triton.backends.nvidia.compiler:get_ptxas", to="name the assembler that a kernel went through")
def assembler_path(arch: int) -> str:
    """The ptxas that Triton uses for an architecture; it brings several."""
    from triton.backends.nvidia.compiler import get_ptxas

    return str(get_ptxas(arch).path)


@needs(TRITON, "triton.backends:backends", to="tell whether there is a compiler for NVIDIA's GPUs")
def compiles_for_nvidia() -> bool:
    """Whether this Triton was built with NVIDIA's compiler."""
    from triton.backends import backends

    return "nvidia" in backends


@needs(TRITON, "triton.runtime.jit:JITFunction", to="tell kernels that can be compiled")
def is_jitted(kernel: object) -> bool:
    """Whether ``@triton.jit`` made it to be compiled, and not interpreted. ``triton.JITFunction`` is listed nowhere."""
    from triton.runtime.jit import JITFunction

    return isinstance(kernel, JITFunction)


@needs(TRITON, "triton.compiler.errors:CompilationError", to="say which line does not compile")
def is_compilation_error(error: object) -> bool:
    """Whether the compiler refused a line: ``node``, ``src`` and ``error_message`` say which and why."""
    from triton.compiler.errors import CompilationError

    return isinstance(error, CompilationError)


@needs(TRITON, "triton.runtime.errors:PTXASError", to="say that the assembler is too old")
def is_assembler_error(error: object) -> bool:
    """Whether ptxas refused what the compiler made."""
    from triton.runtime.errors import PTXASError

    return isinstance(error, PTXASError)


@needs(TRITON, "triton.compiler.errors:CompileTimeAssertionFailure", "triton.runtime.errors:PTXASError", to=_TUNER)
def tuner_passes_over(error: object) -> bool:
    """Whether the autotuner goes on to its next configuration after such an error, as after one that does not fit."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import PTXASError

    return isinstance(error, CompileTimeAssertionFailure | PTXASError)


@needs(TRITON, "triton.runtime.autotuner:Autotuner", to=_TUNER)
def is_autotuner(kernel: object) -> bool:
    """Whether ``@triton.autotune`` made it."""
    from triton.runtime.autotuner import Autotuner

    return isinstance(kernel, Autotuner)


@needs(TRITON, "triton.runtime.autotuner:Heuristics", to=_TUNER)
def has_heuristics(kernel: object) -> bool:
    """Whether ``@triton.heuristics`` made it."""
    from triton.runtime.autotuner import Heuristics

    return isinstance(kernel, Heuristics)


def below(kernel: Any) -> Any:
    """What ``@triton.autotune`` or ``@triton.heuristics`` decorated."""
    return attribute(TRITON, kernel, "fn", _TUNER)


def heuristics_of(kernel: Any) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
    """Parameter -> function of all arguments, of a kernel with heuristics."""
    return dict(attribute(TRITON, kernel, "values", _TUNER))


def configs_of(tuner: Any) -> list[Any]:
    """The ``triton.Config`` of an autotuned kernel, in their order."""
    return list(attribute(TRITON, tuner, "configs", _TUNER))


def parameters_of(tuner: Any) -> list[str]:
    """The parameters of an autotuned kernel, in their order."""
    return list(attribute(TRITON, tuner, "arg_names", _TUNER))


def pruning_of(tuner: Any) -> Callable[..., Any] | None:
    """``early_config_prune`` of ``prune_configs_by``; None where the tuner has none."""
    found: Callable[..., Any] | None = attribute(TRITON, tuner, "early_config_prune", _TUNER)
    return found


@contextmanager
def tuner_held_to(tuner: Any, config: Any, before: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Within, each launch of an autotuned kernel runs ``config``, after ``before(arguments by name)``."""
    configs, names = attribute(TRITON, tuner, "configs", _TUNER), parameters_of(tuner)
    run = attribute(TRITON, tuner, "run", _TUNER)

    def run_one(*arguments: Any, **keywords: Any) -> Any:
        before({**dict(zip(names, arguments, strict=False)), **keywords})
        return run(*arguments, **keywords)

    tuner.configs, tuner.run = [config], run_one  # with one there is no choice
    try:
        yield
    finally:
        tuner.configs = configs
        del tuner.run


def interpreter_is_loaded() -> bool:
    """Whether Triton's interpreter is. Its documented switch, TRITON_INTERPRET, may be set and nothing have used it."""
    return "triton.runtime.interpreter" in sys.modules


def interpreter_has_run() -> bool:
    """Whether it has run a kernel in this process."""
    return bool(attribute(TRITON, _interpreted(), "rewritten_fn", _INTERPRETER))


@contextmanager
def interpreter_replaced(run: Callable[..., Any]) -> Iterator[None]:
    """Within, what the interpreter would run goes to ``run`` instead."""
    interpreted = _interpreted()
    before = attribute(TRITON, interpreted, "run", _INTERPRETER)
    interpreted.run = run
    try:
        yield
    finally:
        interpreted.run = before


def _interpreted() -> Any:
    return attribute(TRITON, sys.modules["triton.runtime.interpreter"], "InterpretedFunction", _INTERPRETER)
