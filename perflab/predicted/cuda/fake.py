"""Fake tensors: code computes shapes and dtypes, no numbers.

PyTorch's own mode does nearly all of this. This module adds what a case written for real tensors needs in addition:
modules that change their dtype, initialisation that examines its random numbers, compiled code, and an error instead of
a crash when code takes a tensor's address.

Small tensors that depend on constants alone keep their values: ``torch.linspace(0, 0.1, 12).tolist()``. One from a
factory function has them; one that is computed from such tensors alone has the way to compute them, on real tensors,
when a call needs them. So shapes, dtypes and memory remain those of fake tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import cache
from operator import methodcaller
from typing import Any

import torch
import torch.utils
from torch import Tensor

from perflab.internals.of_torch import DataDependentOutputException, FakeTensor, FakeTensorMode
from perflab.internals.of_torch.compiler import dynamo_is_loaded
from perflab.internals.of_torch.dispatch import say_which_modes_are_on, without_dispatch_modes, without_torch_function
from perflab.internals.of_torch.patched import TRUNCATED_NORMAL, Replacement, attributes_replaced
from perflab.internals.of_torch.tracing import MODE_LOG, forget_real_tensor, refusing_addresses, storage_key, version_of


@contextmanager
def fake_tensors(mode: FakeTensorMode | None = None) -> Iterator[FakeTensorMode]:
    """Within the block, tensors are fake: they have a shape, a dtype and a device, and no memory.

    Real tensors are accepted and treated as fake. ``mode`` is the mode of an earlier block, whose tensors can then be
    used in this block; None: a new mode.

    ``Module.to(dtype)``, ``.bfloat16()``, ``.to_empty()``, ``torch.nn.init.trunc_normal_`` and ``copy.deepcopy`` work.
    Taking a tensor's address raises ``RuntimeError``: a kernel that got such an address would crash.
    """
    with ExitStack() as stack:
        stack.enter_context(attributes_replaced(refusing_addresses()))
        mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
        stack.enter_context(_compiled_code_runs_as_written())
        stack.enter_context(_errors_told_once())
        stack.enter_context(attributes_replaced(_replacements(mode)))
        stack.callback(say_which_modes_are_on)
        stack.enter_context(mode)
        yield mode


@contextmanager
def _errors_told_once() -> Iterator[None]:
    """Within the block, the mode does not log errors of incompatible shapes: the operator raises them anyway."""
    log = logging.getLogger(MODE_LOG)

    def is_news(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("failed while attempting to run meta")

    log.addFilter(is_news)
    try:
        yield
    finally:
        log.removeFilter(is_news)


@contextmanager
def _compiled_code_runs_as_written() -> Iterator[None]:
    """Within the block, compiled functions run eagerly: machine code would use the fake tensors' addresses.

    Importing the compiler takes a second, so the stance is set only if the compiler is loaded, or once it is.
    """
    with ExitStack() as stack:

        def run_as_written() -> None:
            if dynamo_is_loaded() and not told:
                told.append(stack.enter_context(torch.compiler.set_stance("force_eager")))

        def compile_later(*arguments: Any, **keywords: Any) -> Any:
            made = compile_now(*arguments, **keywords)
            run_as_written()
            return made

        told: list[Any] = []
        compile_now: Any = torch.compile
        run_as_written()
        stack.enter_context(attributes_replaced([(torch, "compile", compile_later)]))
        yield


def _copied(tensor: FakeTensor, memo: dict[int, Any]) -> Any:
    """Copy a fake tensor as ``copy.deepcopy`` copies a real one; PyTorch's own function reads the address first.

    A parameter's copy has memory of its own. Any other tensor's copy has a copy of the whole storage, which copies of
    views of that storage share.
    """
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        return torch.Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-untyped-call]  # refuses it
    copy: Any
    with torch.no_grad():
        if isinstance(tensor, torch.nn.Parameter):
            copy = torch.nn.Parameter(tensor.detach().clone(memory_format=torch.preserve_format), tensor.requires_grad)
        else:
            storage = tensor.untyped_storage()
            whole = memo.get(storage_key(storage))
            if whole is None:
                whole = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
                memo[storage_key(storage)] = whole
            copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            copy.set_(whole.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
            copy.requires_grad_(tensor.requires_grad)
            if tensor.grad is not None:
                copy.grad = deepcopy(tensor.grad, memo)
    memo[id(tensor)] = copy
    for name in vars(tensor).keys() - vars(copy).keys():
        setattr(copy, name, deepcopy(vars(tensor)[name], memo))
    return copy


def _replacements(mode: FakeTensorMode) -> list[Replacement]:
    swap: Any = torch.utils.swap_tensors
    drawing = TRUNCATED_NORMAL.target()
    draw = getattr(*drawing)

    def swap_tensors(first: torch.Tensor, second: torch.Tensor) -> None:
        """Swap tensors, also those that the mode remembers.

        A module changes the dtype of a tensor of a subclass by swapping, and swapping refuses a tensor with weak
        references to it. The mode keeps such references to tensors that it made fake, only to save time, so they are
        dropped first.
        """
        for tensor in (first, second):
            forget_real_tensor(mode, tensor)
        swap(first, second)

    def draw_truncated(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """Draw once for a fake tensor, which has no numbers to check; PyTorch draws until all are within bounds."""
        if isinstance(tensor, FakeTensor):
            with torch.no_grad():
                return tensor.normal_()
        drawn: torch.Tensor = draw(tensor, *arguments, **keywords)
        return drawn

    return [
        (torch.utils, "swap_tensors", swap_tensors),
        (FakeTensor, "__deepcopy__", _copied),
        (*drawing, draw_truncated),
    ]


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
