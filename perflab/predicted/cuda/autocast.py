"""Autocast as on CUDA, for tensors on the CPU.

The two devices have different lists of operators (``ATen/autocast_mode.cpp``): on CUDA ``softmax``, ``layer_norm``,
``pow``, ``exp``, ``sum`` and similar operators compute in float32; on a CPU they compute in the dtype of their input.
Within ``cuda_autocast()`` the dispatcher uses CUDA's list for CPU tensors. The policies have PyTorch's names
(``ATen/autocast_mode.h``, ``CastPolicy``).

What CUDA's autocast does with an operator is found from the kernel that PyTorch registers for it. A CPU build has these
kernels too. They leave CPU tensors alone, so each kernel is called with fake tensors on CUDA: the first operator that
the kernel calls shows the dtype that the kernel casts to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.library

from perflab.internals.lookup import TORCH, missing
from perflab.internals.of_torch import FakeTensorMode, TorchDispatchMode, WeakTensorKeyDictionary
from perflab.internals.of_torch.dispatch import (
    aten,
    below_cpu_autocast,
    kernels_registered,
    operator_or_none,
    redispatch_as_cuda_autocast,
    registered_for,
    schema_of,
)
from perflab.internals.of_torch.patched import (
    CAST_OF_CUSTOM_FUNCTIONS,
    CASTS_OF_CUSTOM_OPERATORS,
    Private,
    Replacement,
    attributes_replaced,
)
from perflab.internals.of_torch.tracing import is_view

_KEY = "AutocastCPU"

# PyTorch's own functions, under names that are not replaced while a prediction runs.
_dtype_of_autocast = torch.get_autocast_dtype
_set_dtype_of_autocast = torch.set_autocast_dtype
_is_enabled = torch.is_autocast_enabled
_set_enabled = torch.set_autocast_enabled
_clear_cache = torch.clear_autocast_cache


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Within the block, ``torch.autocast`` of ``"cuda"`` and of ``"cpu"`` both cast CPU tensors as CUDA's does."""
    casts = _Casts()
    dtype_before = None if _is_enabled("cpu") else _dtype_of_autocast("cpu")  # an active region restores it by itself
    with kernels_registered((name, kernel, _KEY) for name, kernel in list(_kernels(casts))):
        try:
            if dtype_before is not None:
                _set_dtype_of_autocast("cpu", torch.float16)  # the default dtype of CUDA's autocast
            with attributes_replaced(_questions(casts)):
                yield
        finally:
            if dtype_before is not None:
                _set_dtype_of_autocast("cpu", dtype_before)


class _Casts:
    """Casts arguments, and caches the cast of a float32 parameter for the length of an autocast region.

    ``cached_cast`` in ``ATen/autocast_mode.cpp``.
    """

    def __init__(self) -> None:
        self.cached = WeakTensorKeyDictionary()

    def clear(self) -> None:
        self.cached.clear()
        _clear_cache()

    def __call__(self, value: Any, to: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return [self(one, to) for one in value] if any(isinstance(one, torch.Tensor) for one in value) else value
        if not _is_eligible(value) or value.dtype == to:
            return value
        if not (
            to == _dtype_of_autocast("cpu")
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not is_view(value)
            and torch.is_autocast_cache_enabled()
        ):
            return value.to(to)
        if value not in self.cached:
            self.cached[value] = value.to(to)
        return self.cached[value]


def _is_eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _kernels(casts: _Casts) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the kernels to register, by operator: a cast for those that CUDA casts, none for those only the CPU casts.

    Operators that both devices cast to the lower precision keep the CPU's kernel, whose cache of casts they share.
    Operators of other libraries run the kernel that they registered for CUDA (``torch.library.register_autocast``).
    """
    registered, on_cuda = registered_for(_KEY), registered_for("AutocastCUDA")
    for name in sorted(registered | on_cuda):
        namespace, _, plain = name.rpartition("::")
        packet, _, overload = plain.partition(".")
        operator = operator_or_none(namespace or "aten", packet, overload or "default")
        if name not in on_cuda:
            yield name, torch.library.fallthrough_kernel
        elif operator is not None and namespace:
            yield name, _as_registered_for_cuda(operator)
        elif operator is not None and (kernel := _kernel(operator, casts, keeps_own=name in registered)) is not None:
            yield name, kernel


def _kernel(operator: Any, casts: _Casts, *, keeps_own: bool) -> Any:
    """Return a kernel that acts as CUDA's; None if the CPU's own kernel already does (``keeps_own``)."""
    try:
        first = first_call(operator, OTHER)
        if first.casts_to == LOWER:
            return None if keeps_own else _casting(operator, casts, lambda *_: _dtype_of_autocast("cpu"))
        if first.casts_to == torch.float32:
            return _casting(operator, casts, lambda *_: torch.float32)
        mixed = first_call(operator, LOWER, torch.float32)
    except KeyError:
        return _refusing(operator, is_banned=False)
    if mixed.casts_to == torch.float32:
        return _promote(operator, casts)
    if any(argument.name == "dtype" for argument in schema_of(operator).arguments):
        return _set_opt_dtype(operator)
    if first.asks_for == torch.float32:
        return _append_dtype(operator, first.operator)
    return _refusing(operator, is_banned=mixed.operator is None)


def _as_registered_for_cuda(operator: Any) -> Any:
    def kernel(*arguments: Any, **keywords: Any) -> Any:
        with below_cpu_autocast():
            return redispatch_as_cuda_autocast(operator, arguments, keywords)

    return kernel


def _casting(operator: Any, casts: _Casts, to: Callable[[tuple[Any, ...], dict[str, Any]], torch.dtype]) -> Any:
    def kernel(*arguments: Any, **keywords: Any) -> Any:
        with below_cpu_autocast():
            dtype = to(arguments, keywords)
            return operator(
                *(casts(one, dtype) for one in arguments), **{name: casts(one, dtype) for name, one in keywords.items()}
            )

    return kernel


def _promote(operator: Any, casts: _Casts) -> Any:
    def widest(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.dtype:
        lower = _dtype_of_autocast("cpu")
        given = [one.dtype for one in _flat([*arguments, *keywords.values()]) if _is_eligible(one)]
        if any(dtype not in (lower, torch.float32) for dtype in given):
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
        return torch.float32 if torch.float32 in given else lower

    return _casting(operator, casts, widest)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _set_opt_dtype(operator: Any) -> Any:
    place = [argument.name for argument in schema_of(operator).arguments].index("dtype")

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        given = arguments[place] if len(arguments) > place else keywords.get("dtype")
        with below_cpu_autocast():
            if given is None and _is_eligible(arguments[0]):
                # An argument ``dtype`` that can be given by position is the last such argument.
                arguments, keywords = arguments[:place], keywords | {"dtype": torch.float32}
            return operator(*arguments, **keywords)

    return kernel


def _append_dtype(operator: Any, through: Any) -> Any:
    names = [argument.name for argument in schema_of(operator).arguments]

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        given = dict(zip(names, arguments, strict=False)) | keywords
        for argument in schema_of(operator).arguments:
            given.setdefault(argument.name, argument.default_value)
        dtype = torch.float32 if _is_eligible(given["self"]) else given["self"].dtype
        with below_cpu_autocast():
            return through(*(given[one] for one in names), dtype=dtype)

    return kernel


def _refusing(operator: Any, *, is_banned: bool) -> Any:
    """Return a kernel that raises: CUDA's autocast bans the operator, or casts it by a rule unknown to perflab."""
    name = schema_of(operator).name

    def kernel(*_arguments: Any, **_keywords: Any) -> Any:
        if is_banned:
            raise RuntimeError(
                f"torch.nn.functional.{name.removeprefix('aten::')} and torch.nn.BCELoss are unsafe to autocast on "
                "CUDA; combine it with the sigmoid before it: torch.nn.functional.binary_cross_entropy_with_logits"
            )
        raise missing(TORCH, f"rule that perflab knows for {name} under CUDA's autocast", "predict its precision")

    return kernel


def _questions(casts: _Casts) -> list[Replacement]:
    """Return replacements of the functions that get or set autocast's state: CUDA's state is the CPU's."""

    def device(name: str) -> str:
        return "cpu" if name == "cuda" else name

    autocast: Any = torch.autocast
    initialise = autocast.__init__

    def initialise_here(self: Any, device_type: str, *arguments: Any, **keywords: Any) -> None:
        initialise(self, device(device_type) if isinstance(device_type, str) else device_type, *arguments, **keywords)

    def set_enabled(*given: Any) -> None:  # ("cuda", True), and the older (True), which means CUDA
        _set_enabled(device(given[0] if len(given) > 1 else "cuda"), bool(given[-1]))

    def casting(private: Private) -> Replacement:
        owner, name = private.target()
        cast = getattr(owner, name)
        return owner, name, lambda value, device_type, dtype: cast(value, device(device_type), dtype)

    return [
        (autocast, "__init__", initialise_here),
        *map(casting, (CAST_OF_CUSTOM_FUNCTIONS, *CASTS_OF_CUSTOM_OPERATORS)),
        (torch, "clear_autocast_cache", casts.clear),
        # Without a device, PyTorch answers for CUDA.
        (torch, "is_autocast_enabled", lambda device_type="cuda": _is_enabled(device(device_type))),
        (torch, "set_autocast_enabled", set_enabled),
        (torch, "get_autocast_dtype", lambda device_type: _dtype_of_autocast(device(device_type))),
        (torch, "set_autocast_dtype", lambda device_type, dtype: _set_dtype_of_autocast(device(device_type), dtype)),
        (torch, "get_autocast_gpu_dtype", lambda: _dtype_of_autocast("cpu")),
        (torch, "set_autocast_gpu_dtype", lambda dtype: _set_dtype_of_autocast("cpu", dtype)),
    ]


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
