"""Names of GPU architectures, and readable names of CUDA kernels. Pure; imports no other module of perflab."""

from __future__ import annotations

import re
from functools import cache

_SCOPES = "at native c10 std cuda detail cub thrust at_cuda_detail internal binary_internal memory"
_NAMESPACES = re.compile(rf"\b(?:{_SCOPES.replace(' ', '|')})::|\(anonymous namespace\)::")
_LAMBDAS = re.compile(r"\{lambda\(([^{}()]*)\)#\d+\}")
_PARENTHESES = re.compile(r"\([^()]*\)")
_SAME_FOR_ALL = re.compile(r", (?:array<char\*, \d+>|TrivialOffsetCalculator<[^<>]*>|(?:Load|Store)\w+<\d+>)")
"""Template arguments that describe how a kernel loads and stores, left out of its name."""
_MOST = 120


@cache
def kernel_name(kernel: str) -> str:
    """Return a kernel's name without namespaces and arguments; a lambda has its function's name and its parameters.

    ``void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int,
    ...)`` becomes ``vectorized_elementwise_kernel<4, FillFunctor<float>>``. A long name is cut in its middle.
    """
    name = _NAMESPACES.sub("", kernel.removeprefix("void "))
    name = _LAMBDAS.sub(r"{\1}", name)
    while _PARENTHESES.search(name):
        name = _PARENTHESES.sub("", name)
    name = name.replace("operator const::", "").replace("operator::", "").replace(" const::", "::")
    name = name.replace("::{}", "").replace("::{", "{").replace(" >", ">")
    name = re.sub(r"\b(\d+)ul?\b", r"\1", name)
    name = _SAME_FOR_ALL.sub("", name)
    name = re.sub(r"gpu_kernel_impl(?:_nocast)?<(.*)>\{int\}", r"\1", name)
    return name if len(name) <= _MOST else f"{name[: _MOST - 41]}…{name[-40:]}"


Arch = int | str
"""A GPU's architecture: NVIDIA's compute capability without the dot (90 is sm_90), or AMD's name (``gfx942``)."""


def name_of_arch(arch: Arch) -> str:
    """Return an architecture's name as compilers write it: ``sm_90``, ``gfx942``."""
    return f"sm_{arch}" if isinstance(arch, int) else arch
