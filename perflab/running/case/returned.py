"""Checks the result of a measured callable: refuses NaN, and results that only promise work."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perflab.base.errors import InternalsError, UsageError
from perflab.measure.machine.devices import as_out_of_memory

if TYPE_CHECKING:
    import torch

    from perflab.running.case.perf import CaseState

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_CONSUME = "consume it in the callable: perf(lambda: list(fn(x)))"
_LAZY_BUILTINS = (map, filter, zip, enumerate)
_PART_ELEMENTS = 1 << 20


def refuse_unfinished(state: CaseState, result: Any) -> None:
    """Refuse a result that only promises work: its measured time does not include the work.

    Raises:
        UsageError: the result is a generator or coroutine that has not begun, one of Python's lazy iterators, or a
            future that is not done, including PyTorch's and those of ``multiprocessing``.
    """
    if type(result) in (list, tuple):  # only coroutines in it are refused; other parts may be meant for later use
        result = next((one for one in result if isinstance(one, types.CoroutineType)), result)
    remedy = _unfinished(result)
    if remedy is not None:
        state.problem = "no work"
        kind = type(result).__name__
        article = "an" if kind[0] in "aeiouAEIOU" else "a"
        raise UsageError(
            f"{state.case}: the measured callable returned {article} {kind} that was never run, so the time does "
            "not include the work",
            remedy,
        )


def _unfinished(result: Any) -> str | None:
    """Return the remedy for a result that only promises work; None if the result does not."""
    kind = type(result)
    if issubclass(kind, types.GeneratorType):
        return _CONSUME if inspect.getgeneratorstate(result) == inspect.GEN_CREATED else None
    if issubclass(kind, types.CoroutineType):
        created = inspect.getcoroutinestate(result) == inspect.CORO_CREATED
        return "pass the coroutine function itself, which perf runs to its end: perf(fn, x)" if created else None
    if issubclass(kind, types.AsyncGeneratorType):
        return "run it in the callable, by asyncio.run of a function that consumes it"
    if kind in _LAZY_BUILTINS or (kind.__module__ == "itertools" and issubclass(kind, Iterator)):
        return _CONSUME
    if issubclass(kind, concurrent.futures.Future | asyncio.Future) and not result.done():
        return "wait for it in the callable: perf(lambda: fn(x).result())"
    return _unfinished_elsewhere(result, kind)


def _unfinished_elsewhere(result: Any, kind: type) -> str | None:
    """Return the remedy for a promise of another module; a module that is not loaded cannot have made the result."""
    torch, pools = sys.modules.get("torch"), sys.modules.get("multiprocessing.pool")
    if torch is not None and issubclass(kind, torch.Future) and not result.done():
        return "wait for it in the callable: perf(lambda: fn(x).wait())"
    if pools is not None and issubclass(kind, pools.ApplyResult) and not result.ready():
        return "wait for it in the callable: perf(lambda: fn(x).get())"
    return _CONSUME if pools is not None and issubclass(kind, pools.IMapIterator) else None


def refuse_nan(state: CaseState, result: Any) -> None:
    """Refuse a result that holds NaN, unless the case is marked to allow NaN.

    Raises:
        UsageError: the result holds NaN, and the case is not marked.
    """
    if not state.settings.allow_nan and holds_nan(result):
        state.problem = "NaN"
        raise UsageError(
            f"{state.case}: the measured callable returned NaN; its measurements are discarded",
            "find the NaN, or mark the case @pytest.mark.perf(allow_nan=True) if NaN is expected",
        )


def holds_nan(value: Any) -> bool:
    """Whether a number, a tensor, or nested lists, tuples and dicts of these hold NaN, at any depth and with cycles.

    Only types are inspected, never objects, since an object of a user's class may not support the question.
    """
    import torch

    pending, seen = [value], set[int]()
    while pending:
        value = pending.pop()
        kind = type(value)
        if issubclass(kind, float):
            if float.__ne__(value, value):
                return True
        elif issubclass(kind, torch.Tensor):
            if _tensor_holds_nan(value):
                return True
        elif issubclass(kind, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            pending += _parts(value, kind)
    return False


def _parts(value: Any, kind: type) -> Any:
    if issubclass(kind, dict):
        return dict.values(value)
    return list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value)


def _tensor_holds_nan(tensor: torch.Tensor) -> bool:
    from perflab.internals.of_torch.tracing import parts_of

    try:
        return any(_strided_holds_nan(part) for part in parts_of(tensor.detach()))
    except InternalsError:
        raise
    except Exception as error:
        if as_out_of_memory(error) is not None:
            raise
        return False  # a kind of tensor that PyTorch cannot inspect: its values are not checked


def _strided_holds_nan(tensor: torch.Tensor) -> bool:
    """Whether any element of a strided tensor is NaN, computed without a second tensor of its size.

    If an element is NaN, the maximum is NaN. Dtypes without a maximum are checked part by part.
    """
    import torch

    if tensor.device.type == "meta" or not tensor.numel():
        return False
    tensor = tensor.detach()
    if tensor.is_complex():
        # A conjugate is NaN where the number is; computing the conjugate would copy the tensor.
        both = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)
        return _strided_holds_nan(both)
    if not tensor.is_floating_point():
        return False
    if tensor.itemsize > 1:
        return bool(tensor.amax().isnan())
    return any(bool(part.isnan().any()) for part in _pieces(tensor))


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Split a tensor into views of at most ``_PART_ELEMENTS`` elements, by halving along the longest dimension."""
    if tensor.numel() <= _PART_ELEMENTS:
        return [tensor]
    longest = max(range(tensor.ndim), key=lambda dimension: tensor.shape[dimension])
    halves = tensor.tensor_split(2, dim=longest)
    return [part for half in halves for part in _pieces(half)]
