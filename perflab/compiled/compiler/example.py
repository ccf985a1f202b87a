"""What a user registers: a kernel with an example of its launch arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perflab.errors import KernelError

_NAME = "letters, digits and . _ -, such as rms-norm-bf16"


@dataclass(frozen=True)
class KernelExample:
    """A Triton kernel in one of the configurations that it is shipped in.

    Attributes:
        name: what its cases and baselines are called; unique within a registration.
        kernel: what ``@triton.jit`` made. Of an autotuned one the function below, ``kernel.fn``, once for each of the
            configurations that are to be gated.
        arguments: by parameter name, compile-time constants included. An example of what a launch is given: what is
            derived from it is what a launch derives. Tensors may be on ``meta``, and count as aligned to 16 bytes then;
            integers that are 1 or multiples of 16 are compiled in as such; None, numbers and
            ``triton.tools.tensor_descriptor.TensorDescriptor`` are what they are in a launch.
        num_warps: warps a block.
        num_stages: stages of software pipelining.
        options: what else the launch is given, such as ``{"maxnreg": 128, "enable_fp_fusion": True}``.

    Raises:
        KernelError: the name cannot be used, or the arguments are not those of the kernel.
    """

    name: str
    kernel: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not all(c.isalnum() or c in "._-" for c in self.name):
            raise KernelError(f"a kernel example is named {self.name!r}", f"name it with {_NAME}")
        given = _parameters_of(self)
        unknown = [name for name in self.arguments if name not in given]
        if unknown:
            raise KernelError(
                f"kernel example {self.name!r} gives {_listed(unknown)}, which {_name_of(self.kernel)} does not take",
                f"its parameters are {', '.join(given)}; what is not among them may belong into options={{...}}",
            )
        missing = [name for name, needed in given.items() if needed and name not in self.arguments]
        if missing:
            raise KernelError(
                f"kernel example {self.name!r} does not give {_listed(missing)}, which {_name_of(self.kernel)} takes",
                "add an example of it to arguments={...}, as a launch would give it",
            )
        if self.num_warps < 1 or self.num_warps & (self.num_warps - 1):
            raise KernelError(f"kernel example {self.name!r} has num_warps={self.num_warps}", "give a power of two")


def _parameters_of(example: KernelExample) -> dict[str, bool]:
    """The kernel's parameters, and whether each must be given."""
    function = getattr(example.kernel, "fn", None)
    wrapped = getattr(example.kernel, "configs", None) is not None or hasattr(function, "fn")
    if wrapped or not inspect.isfunction(function):
        what = "is decorated once more" if wrapped else f"has {type(example.kernel).__name__} for a kernel"
        raise KernelError(
            f"kernel example {example.name!r} {what}",
            "give what @triton.jit made; below @triton.autotune or @triton.heuristics that is kernel.fn, with an "
            "example for each configuration",
        )
    parameters = inspect.signature(function).parameters
    return {name: parameter.default is inspect.Parameter.empty for name, parameter in parameters.items()}


def _name_of(kernel: Any) -> str:
    return str(getattr(kernel.fn, "__name__", "the kernel"))


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))
