"""The object that a user registers: a kernel with an example of its launch arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perflab.base.errors import KernelError
from perflab.internals.configurations import decided, is_decorated, name_of, settled, undecorated

_NAME = "letters, digits and . _ -, such as rms-norm-bf16"


@dataclass(frozen=True)
class KernelExample:
    """A Triton kernel in one of the configurations that it is shipped in, or in all that its autotuner may choose.

    Attributes:
        name: the name of the example's cases and baselines; unique within a registration.
        kernel: the function made by ``@triton.jit``, also with ``@triton.autotune`` and ``@triton.heuristics`` around
            it. An autotuned kernel becomes one example for each configuration that the tuner may choose for these
            arguments, named ``matmul-BLOCK_M64-BLOCK_K32-w4-s3`` if ``name`` is ``matmul``.
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
