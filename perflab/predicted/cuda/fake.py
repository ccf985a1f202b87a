"""Fake tensors: code computes shapes and dtypes, no numbers.

PyTorch's own mode does nearly all of it. Here is what it lacks for a case that is written for real tensors: modules
that change their dtype, initialisation that looks at what it drew, compiled code, and addresses, which are an error
here and no crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import torch
import torch.utils

from perflab.predicted.cuda.patching import attributes_replaced
from perflab.torch_internals import FakeTensor, FakeTensorMode
from perflab.torch_internals.compiler import dynamo_is_loaded, has_compiled_marker
from perflab.torch_internals.dispatch import say_which_modes_are_on
from perflab.torch_internals.fakes import MODE_LOG, forget_real_tensor, refusing_addresses
from perflab.torch_internals.patched import truncated_normal
from perflab.torch_internals.tracing import storage_key


@contextmanager
def fake_tensors(mode: FakeTensorMode | None = None) -> Iterator[FakeTensorMode]:
    """Within, tensors are fake: they have a shape, a dtype and a device, and no memory. Real ones are taken as fake.

    ``mode`` is what an earlier block gave, so that its tensors can be used in this one; None: a new one.

    ``Module.to(dtype)``, ``.bfloat16()`` and ``.to_empty()`` work, ``torch.nn.init.trunc_normal_`` and
    ``copy.deepcopy`` too, and a tensor's address is a ``RuntimeError``: a kernel that is given one would crash.
    """
    with ExitStack() as stack:
        stack.enter_context(attributes_replaced(refusing_addresses()))
        mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
        stack.enter_context(_compiled_code_runs_as_written())
        stack.enter_context(_errors_told_once())
        owner, name = truncated_normal()
        stack.enter_context(
            attributes_replaced(
                [
                    (torch.utils, "swap_tensors", _swapping_in(mode, torch.utils.swap_tensors)),
                    (FakeTensor, "__deepcopy__", _copied),
                    (owner, name, _without_looking(getattr(owner, name))),
                ]
            )
        )
        stack.callback(say_which_modes_are_on)
        stack.enter_context(mode)
        yield mode


@contextmanager
def _errors_told_once() -> Iterator[None]:
    """An operator that is given shapes that do not go together raises; the mode also logs that, traceback and all."""
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
    """What ``torch.compile`` made runs eagerly within: machine code would follow the fake tensors' addresses.

    The compiler takes a second to import, so that is not done here: only once it is there is it told.
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
    """``copy.deepcopy`` of a fake tensor, as of a real one; PyTorch's own asks for the address first.

    A parameter's copy has memory for itself; another tensor's for all of its storage, which views of it share.
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


def _swapping_in(mode: FakeTensorMode, swap: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """``torch.utils.swap_tensors`` for tensors that the mode remembers.

    A module changes the dtype of a tensor that is no plain one by swapping, and swapping refuses tensors that something
    holds a weak reference to. The mode's memory of what it made fake does; it is only there to save time.
    """

    def swap_tensors(first: torch.Tensor, second: torch.Tensor) -> None:
        for tensor in (first, second):
            forget_real_tensor(mode, tensor)
        swap(first, second)

    return swap_tensors


def _without_looking(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``_no_grad_trunc_normal_`` draws again until all numbers are within bounds; a fake tensor's are as they are."""

    def draw_truncated(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            with torch.no_grad():
                return tensor.normal_()
        return draw(tensor, *arguments, **keywords)

    return draw_truncated


def is_compiled(*objects: object) -> bool:
    """Whether one of them came from ``torch.compile``: on fake tensors that runs as if it were not compiled."""
    inner = (module for one in objects if isinstance(one, torch.nn.Module) for module in one.modules())
    return any(map(has_compiled_marker, (*objects, *inner)))
