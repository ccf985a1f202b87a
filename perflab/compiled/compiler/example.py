"""The object that a user registers, a kernel with an example of its launch arguments, and the way to find it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from perflab.base.errors import KernelError
from perflab.base.gpu_names import Arch
from perflab.internals.configurations import decided, is_decorated, name_of, settled, undecorated

_NAME = "letters, digits and . _ -, such as rms-norm-bf16"


@dataclass(frozen=True)
class KernelExample:
    """A Triton kernel in one of the configurations that it is shipped in, or in all that its autotuner may choose.

    Attributes:
        name: the name of the example's cases and baselines; unique within a registration.
        kernel: the function made by ``@triton.jit``, also with ``@triton.autotune`` and ``@triton.heuristics`` around
            it, or by ``@gluon.jit``. An autotuned kernel becomes one example for each configuration that the tuner may
            choose for these arguments, named ``matmul-BLOCK_M64-BLOCK_K32-w4-s3`` if ``name`` is ``matmul``.
        arguments: example arguments of a launch by parameter name, including compile-time constants, except those that
            a tuner or a heuristic sets. The kernel is specialised for them as a launch would be. Tensors may be on
            ``meta``, and then count as aligned to 16 bytes. Integers that are 1 or multiples of 16 are specialised as
            such. None, numbers and ``triton.tools.tensor_descriptor.TensorDescriptor`` mean the same as in a launch.
        num_warps: the number of warps in a block; a configuration's own number takes precedence.
        num_stages: the number of stages of software pipelining; a configuration's own number takes precedence.
        options: further options of the launch, such as ``{"maxnreg": 128, "enable_fp_fusion": True}``.
        tuned: the name of the autotuned example of which this one is a configuration. ``configured`` sets it.

    Raises:
        KernelError: the name cannot be used, or the arguments do not fit the kernel's parameters.
    """

    name: str
    kernel: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    tuned: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not all(c.isalnum() or c in "._-" for c in self.name):
            raise KernelError(f"a kernel example is named {self.name!r}", f"name it with {_NAME}")
        given, chosen = _parameters_of(self), decided(self.kernel)
        unknown = [name for name in self.arguments if name not in given]
        if unknown:
            raise KernelError(
                f"kernel example {self.name!r} gives {_listed(unknown)}, which {name_of(self.kernel)} does not take",
                f"its parameters are {', '.join(given)}; what is not among them may belong into options={{...}}",
            )
        twice = [name for name in self.arguments if name in chosen]
        if twice:
            raise KernelError(
                f"kernel example {self.name!r} gives {_listed(twice)}, which the autotuner or a heuristic of "
                f"{name_of(self.kernel)} gives",
                "leave it out of arguments={...}; for one configuration alone, give what @triton.jit made: kernel.fn",
            )
        missing = [name for name, needed in given.items() if needed and name not in {*self.arguments, *chosen}]
        if missing:
            raise KernelError(
                f"kernel example {self.name!r} does not give {_listed(missing)}, which {name_of(self.kernel)} takes",
                "add an example of it to arguments={...}, as a launch would give it",
            )
        if self.num_warps < 1 or self.num_warps & (self.num_warps - 1):
            raise KernelError(f"kernel example {self.name!r} has num_warps={self.num_warps}", "give a power of two")

    def configured(self) -> list[KernelExample]:
        """Return one example for each configuration that the autotuner may choose, with heuristics applied.

        The list holds just this example if the kernel has neither an autotuner nor heuristics.

        Raises:
            KernelError: a heuristic fails, no configuration is left, or one sets a parameter that the kernel lacks.
        """
        if not is_decorated(self.kernel):
            return [self]
        kernel, parameters = undecorated(self.kernel), _parameters_of(self)
        launch = {"num_warps": self.num_warps, "num_stages": self.num_stages, **self.options}
        found = []
        for configuration, given in settled(self.kernel, {**launch, **self.arguments}):
            options = {name: value for name, value in given.items() if name not in parameters}
            found.append(
                replace(
                    self,
                    name=f"{self.name}-{configuration}" if configuration else self.name,
                    kernel=kernel,
                    arguments={name: value for name, value in given.items() if name in parameters},
                    num_warps=options.pop("num_warps"),
                    num_stages=options.pop("num_stages"),
                    options=options,
                    tuned=self.name if configuration else None,
                )
            )
        return found


def _parameters_of(example: KernelExample) -> dict[str, bool]:
    """Return the names of the kernel's parameters, and for each whether it is required."""
    kernel = undecorated(example.kernel)
    function = getattr(kernel, "fn", None)
    if not inspect.isfunction(function):
        what = "is decorated once more" if hasattr(function, "fn") else f"has {type(kernel).__name__} for a kernel"
        raise KernelError(
            f"kernel example {example.name!r} {what}",
            "give what @triton.jit made, or @triton.autotune and @triton.heuristics around it; nothing else is known",
        )
    parameters = inspect.signature(function).parameters
    return {name: parameter.default is inspect.Parameter.empty for name, parameter in parameters.items()}


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))


_WANTED = "a list or tuple of perflab.compiled.compiler.KernelExample, or a function that returns one"


def load_examples(registration: str, arch: Arch) -> list[KernelExample]:
    """Return the registered examples for an architecture, in order; an autotuned kernel gives one a configuration.

    Args:
        registration: ``package.module:attribute``. The attribute is a list or a tuple, or a function that returns one.
            The function takes no arguments, or the architecture (90, "gfx942") if configurations depend on it.
        arch: the architecture.

    Raises:
        KernelError: the module cannot be imported, the attribute does not exist, or it is of another type.
    """
    module_name, colon, attribute = registration.partition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise KernelError(
            f"{registration!r} does not say where kernels are registered",
            "write package.module:ATTRIBUTE, such as mypackage.kernels:EXAMPLES",
        )
    module = _import(module_name, registration)
    if not hasattr(module, attribute):
        close = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise KernelError(f"{module_name} has no {attribute}", f"{hint}name {_WANTED} in {module.__file__}")
    return _checked(_called(getattr(module, attribute), registration, arch), registration)


def _import(name: str, registration: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise KernelError(
                f"{registration!r} cannot be imported: {error}",
                "run from the folder that holds it, install it, or name its folder in PYTHONPATH",
            ) from error
        raise _broken(f"importing {name} failed", error) from error
    except KernelError:
        raise  # an invalid example raises its own error
    except Exception as error:
        raise _broken(f"importing {name} failed", error) from error


def _called(registered: Any, registration: str, arch: Arch) -> Any:
    if isinstance(registered, list | tuple) or not inspect.isroutine(registered):
        return registered
    takes_arch = bool(inspect.signature(registered).parameters)
    try:
        return registered(arch) if takes_arch else registered()
    except KernelError:
        raise
    except Exception as error:
        raise _broken(f"{registration}({arch if takes_arch else ''}) failed", error) from error


def _checked(registered: Any, registration: str) -> list[KernelExample]:
    if not isinstance(registered, list | tuple):
        raise KernelError(f"{registration} is {type(registered).__name__!r}", f"make it {_WANTED}")
    for position, example in enumerate(registered):
        if not isinstance(example, KernelExample):
            raise KernelError(f"item {position} of {registration} is {type(example).__name__!r}", f"make it {_WANTED}")
    examples = [one for example in registered for one in example.configured()]
    names = [example.name for example in examples]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        names_twice = ", ".join(map(repr, twice))
        raise KernelError(f"{registration} has several kernels named {names_twice}", "give each kernel its own name")
    return examples


def _broken(what: str, error: Exception) -> KernelError:
    """Return the error for user code that raised: the exception, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "?"
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    return KernelError(f"{what}: {type(error).__name__}: {error}", f"fix it: {place}")
