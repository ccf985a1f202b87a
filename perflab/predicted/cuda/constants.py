"""Values of small fake tensors that are made of constants alone, such as ``torch.linspace(0, 0.1, 12).tolist()``.

A small tensor of a factory keeps its values; what is made of such tensors alone keeps how. They are computed on real
tensors when a call needs them, so shapes, dtypes and memory are those of fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from perflab.torch_internals import DataDependentOutputException
from perflab.torch_internals.dispatch import without_dispatch_modes, without_torch_function
from perflab.torch_internals.tracing import version_of

MOST_NUMBERS = 4096
"""Of a tensor that keeps values: those that decide how a model is built are few."""

_VALUES = "_perflab_values"
_FACTORIES = frozenset((torch.arange, torch.as_tensor, torch.linspace, torch.logspace, torch.tensor))
"""What is given values; ``zeros`` and ``ones`` are stand-ins for data as often."""
_PAST_THE_VERSION: Any = frozenset((Tensor.data.__get__, Tensor.data.__set__))  # type: ignore[attr-defined]
"""What is written through ``.data`` is no new version of the tensor."""


class _Values:
    """A tensor's values, computed when they are asked for."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.get: Callable[[], Any] = cache(compute)


def call(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Call a torch function: on fake tensors, or on real ones if it needs values, and all of them are known."""
    tensors: list[Tensor] = []
    _replaced([*arguments, *keywords.values()], Tensor, tensors.append)
    if function in _PAST_THE_VERSION:
        vars(arguments[0]).pop(_VALUES, None)
    # Of tensors their values are kept: they themselves would live longer than they do.
    given, names = _replaced([*arguments, *keywords.values()], Tensor, _known), tuple(keywords)
    at = len(arguments)

    def compute() -> Any:
        real = _replaced(given, _Values, methodcaller("get"))
        return function(*real[:at], **dict(zip(names, real[at:], strict=True)))

    values = _Values(compute) if all(map(_known, tensors)) else None
    try:
        result = function(*arguments, **keywords)
    except (DataDependentOutputException, TypeError):  # the latter of ``f"{x:.2f}"``
        real = _computed(values) if values is not None and tensors else None
        if real is None or isinstance(real, Tensor | list | tuple):
            raise
        return real
    if not tensors and function in _FACTORIES and result.numel() <= MOST_NUMBERS:
        now = _computed(_Values(compute))  # lists and arrays that it was given may change
        values = _Values(lambda: now)
    if values is not None and (tensors or function in _FACTORIES):
        _keep(result, values, tensors)
    return result


def _known(tensor: Tensor) -> _Values | None:
    values, version = getattr(tensor, _VALUES, (None, 0))
    return values if values is not None and version == version_of(tensor) else None


def _keep(result: Any, values: _Values, tensors: Sequence[Tensor]) -> None:
    if isinstance(result, list | tuple):
        for at, one in enumerate(result):
            _keep(one, _Values(lambda at=at: values.get()[at]), tensors)  # type: ignore[misc]
    elif isinstance(result, Tensor) and result.numel() <= MOST_NUMBERS and all(result is not one for one in tensors):
        if result.is_inference():  # it keeps no count of what is written to it
            return
        setattr(result, _VALUES, (values, version_of(result)))


def _computed(values: _Values) -> Any:
    """The values; None where they cannot be computed, or are drawn at random."""
    with without_dispatch_modes(), without_torch_function(), torch.no_grad():
        generator = torch.get_rng_state()
        try:
            real = values.get()
        except Exception:
            return None
        if not torch.equal(generator, torch.get_rng_state()):
            torch.set_rng_state(generator)
            values.get = lambda: None  # nor when they are asked for again
            return None
        return real.clone() if isinstance(real, Tensor) else real


def _replaced(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """The same with all of a kind replaced, in lists and tuples too."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_replaced(one, kind, by) for one in value)
    return value
