"""Finds what CUDA's autocast does with an operator, from the kernel that PyTorch registers for the operator.

A CPU build has these kernels too. They leave CPU tensors alone, so each kernel is called with fake tensors on CUDA: the
first operator that the kernel calls shows the dtype that the kernel casts to (``ATen/autocast_mode.h``).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from perflab.internals.of_torch import FakeTensorMode, TorchDispatchMode
from perflab.internals.of_torch.dispatch import aten, redispatch_as_cuda_autocast, schema_of

LOWER, OTHER = torch.float16, torch.bfloat16
"""Autocast's dtype while a kernel is examined, and a dtype that is cast whatever dtype the kernel casts to."""


class Called(Exception):  # noqa: N818 # no error: raised to end the kernel at its first call
    """The first operator that a kernel calls; ``operator`` is None if the kernel ends without a call."""

    def __init__(self, operator: Any = None, dtype: torch.dtype | None = None) -> None:
        self.operator = operator
        self.asks_for = dtype
        self.casts_to = dtype if operator is aten("_to_copy.default", "know what autocast casts to") else None


class _EndAtFirstCall(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.ops.prim.device.default:
            return func(*args)
        raise Called(func, (kwargs or {}).get("dtype"))


@functools.cache
def first_call(operator: Any, *dtypes: torch.dtype) -> Called:
    """Return the first operator that autocast's kernel calls, given tensors of these dtypes in turn.

    Raises:
        KeyError: an argument of the operator has a type that ``_value`` does not know.
    """
    with FakeTensorMode():
        tensors = [torch.empty(2, 2, dtype=dtype, device="cuda") for dtype in dtypes]
    arguments = [(one.name, _value(one, tensors), one.kwarg_only) for one in schema_of(operator).arguments]
    positional = [value for _, value, by_name in arguments if not by_name]
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", LOWER)
    try:
        with _EndAtFirstCall():  # type: ignore[no-untyped-call]
            named = {name: value for name, value, by_name in arguments if by_name}
            redispatch_as_cuda_autocast(operator, positional, named)
    except Called as first:
        return first
    except RuntimeError:
        pass
    finally:
        torch.set_autocast_dtype("cuda", before)
    return Called()


def _value(argument: Any, tensors: list[torch.Tensor]) -> Any:
    """Return some value of the argument's type; the kernel casts before anything examines the value."""
    if argument.name == "dtype":
        return torch.float64  # as if a caller asked for it: a kernel that casts to float32 anyway ignores the argument
    if argument.has_default_value():
        return argument.default_value
    kind = str(argument.type).removeprefix("Optional[").rstrip("]")
    kind, is_list = kind.removeprefix("List[").removeprefix("Optional["), "List[" in kind
    if kind == "Tensor":
        value: Any = tensors.pop(0) if len(tensors) > 1 else tensors[0]
    else:
        value = {"int": 1, "float": 1.0, "number": 1.0, "bool": False, "str": ""}[kind]
    return [value, value] if is_list else value
