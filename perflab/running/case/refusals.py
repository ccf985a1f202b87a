"""Refuses what cannot be measured: NaN, results that only promise work, and raw Triton launches without a GPU.

Without a GPU a launch ends in an error of Triton's about drivers, or about addresses if tensors are fake; the case is
refused with a remedy. In the interpreter, which ``TRITON_INTERPRET=1`` selects when Triton is imported, the time of a
launch is meaningless, so the case is skipped. This module does not import Triton: a case that launches kernels has
loaded it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perflab.base.errors import InternalsError, UsageError, with_causes
from perflab.internals.of_triton import NO_GPU, interpreter_has_run, interpreter_is_loaded, interpreter_replaced
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
    # A module that is not loaded cannot have made the result.
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


def line_of_launch(error: BaseException | None) -> str | None:
    """Return the source line of the kernel launch that caused an error: ``kernels.py:12: `scale[grid](x)` ``.

    None if the error did not come from a launch.
    """
    triton = getattr(sys.modules.get("triton"), "__file__", None)
    if triton is None:
        return None
    for one in with_causes(error):
        launching = None
        for frame in traceback.extract_tb(one.__traceback__):
            if Path(frame.filename).is_relative_to(Path(triton).parent):
                if launching is None:
                    return None
                path = Path(launching.filename)
                shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
                return f"{shown}:{launching.lineno}: `{launching.line}`"
            launching = frame
    return None


@contextlib.contextmanager
def only_compiled_kernels(case: str) -> Iterator[None]:
    """Skip or refuse, around the measuring of a case, kernel launches that do not run on a GPU.

    A case is skipped at its first launch in the interpreter, or after the block, if the block itself loads the
    interpreter.

    Raises:
        pytest.skip.Exception: Triton's interpreter runs a kernel of the case.
        UsageError: the case launches a kernel, and there is no GPU.
    """
    with kernels_have_a_gpu(case):
        if interpreter_is_loaded():
            with interpreter_replaced(_skip):
                yield
            return
        yield
        if interpreter_is_loaded() and interpreter_has_run():  # the block has loaded the interpreter
            _skip()


@contextlib.contextmanager
def kernels_have_a_gpu(case: str) -> Iterator[None]:
    """Refuse, around a call of a case, kernel launches without a GPU; launches in the interpreter are allowed.

    Raises:
        UsageError: the case launches a kernel, and there is no GPU.
    """
    try:
        yield
    except RuntimeError as error:
        where = line_of_launch(error) if NO_GPU in str(error) else None
        if where is None:
            raise
        raise UsageError(
            f"{case}: {where} launches a Triton kernel, but there is no GPU to run it",
            "skip it where there is none (@pytest.mark.skipif(not torch.cuda.is_available(), ...)); set "
            "TRITON_INTERPRET=1 before Triton is imported to run it, untimed; `perflab kernels` compiles it here",
        ) from None


def _skip(*_arguments: Any, **_keywords: Any) -> None:
    pytest.skip("in Triton's interpreter, so its time means nothing")
