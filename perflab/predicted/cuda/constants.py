"""Keeps the values of small fake tensors that depend on constants alone: ``torch.linspace(0, 0.1, 12).tolist()``.

A small tensor from a factory function keeps its values. A tensor computed from such tensors alone keeps the way to
compute its values. The values are computed on real tensors when a call needs them, so shapes, dtypes and memory remain
those of fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from perflab.internals.of_torch import DataDependentOutputException
from perflab.internals.of_torch.dispatch import without_dispatch_modes, without_torch_function
from perflab.internals.of_torch.tracing import version_of

MOST_NUMBERS = 4096
"""The most elements of a tensor that keeps its values: tensors that decide how a model is built are small."""

_VALUES = "_perflab_values"
_FACTORIES = frozenset((torch.arange, torch.as_tensor, torch.linspace, torch.logspace, torch.tensor))
"""The factory functions whose results keep their values; not ``zeros`` and ``ones``, which often stand in for data."""
_PAST_THE_VERSION: Any = frozenset((Tensor.data.__get__, Tensor.data.__set__))  # type: ignore[attr-defined]
"""The accessors of ``.data``: a write through ``.data`` does not increase the tensor's version."""


class _Values:
    """A tensor's values, computed when they are first needed, and cached."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.get: Callable[[], Any] = cache(compute)


def call(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Call a torch function on fake tensors, or on real tensors if the function needs values and all are known."""
    tensors: list[Tensor] = []
    _replaced([*arguments, *keywords.values()], Tensor, tensors.append)
    if function in _PAST_THE_VERSION:
        vars(arguments[0]).pop(_VALUES, None)
    # Keep the values of tensor arguments, not the tensors, whose lifetimes would become longer.
    given, names = _replaced([*arguments, *keywords.values()], Tensor, _known), tuple(keywords)
    at = len(arguments)

    def compute() -> Any:
        real = _replaced(given, _Values, methodcaller("get"))
        return function(*real[:at], **dict(zip(names, real[at:], strict=True)))

    values = _Values(compute) if all(map(_known, tensors)) else None
    try:
        result = function(*arguments, **keywords)
    except (DataDependentOutputException, TypeError):  # ``f"{x:.2f}"`` raises TypeError
        real = _computed(values) if values is not None and tensors else None
        if real is None or isinstance(real, Tensor | list | tuple):
            raise
        return real
    if not tensors and function in _FACTORIES and result.numel() <= MOST_NUMBERS:
        now = _computed(_Values(compute))  # lists and arrays among the arguments may change later
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
        if result.is_inference():  # inference tensors have no version
            return
        setattr(result, _VALUES, (values, version_of(result)))


def _computed(values: _Values) -> Any:
    """Return the values; None if they cannot be computed, or are drawn at random."""
    with without_dispatch_modes(), without_torch_function(), torch.no_grad():
        generator = torch.get_rng_state()
        try:
            real = values.get()
        except Exception:
            return None
        if not torch.equal(generator, torch.get_rng_state()):
            torch.set_rng_state(generator)
            values.get = lambda: None  # later calls return None too
            return None
        return real.clone() if isinstance(real, Tensor) else real


def _replaced(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """Return the value with each instance of ``kind`` replaced, in lists and tuples too."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_replaced(one, kind, by) for one in value)
    return value
