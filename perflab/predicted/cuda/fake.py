"""Fake tensors: code computes shapes and dtypes, no numbers.

PyTorch's own mode does nearly all of it. Here is what it lacks for a case that is written for real tensors: modules
that change their dtype, initialisation that looks at what it drew, compiled code, and addresses, which are an error
here and no crash.
"""

from __future__ import annotations

import importlib
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import torch
import torch.utils
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from perflab.predicted.cuda.patching import attributes_replaced

functorch_config: Any = importlib.import_module("torch._functorch.config")


@contextmanager
def fake_tensors(mode: FakeTensorMode | None = None) -> Iterator[FakeTensorMode]:
    """Within, tensors are fake: they have a shape, a dtype and a device, and no memory. Real ones are taken as fake.

    ``mode`` is what an earlier block gave, so that its tensors can be used in this one; None: a new one.

    ``Module.to(dtype)``, ``.bfloat16()`` and ``.to_empty()`` work, ``torch.nn.init.trunc_normal_`` and
    ``copy.deepcopy`` too, and a tensor's address is a ``RuntimeError``: a kernel that is given one would crash.
    """
    with ExitStack() as stack:
        stack.enter_context(_addresses_refused())
        mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
        stack.enter_context(_compiled_code_runs_as_written())
        stack.enter_context(_errors_told_once())
        initialisation: Any = torch.nn.init
        stack.enter_context(
            attributes_replaced(
                [
                    (torch.utils, "swap_tensors", _swapping_in(mode, torch.utils.swap_tensors)),
                    (FakeTensor, "__deepcopy__", _copied),
                    (
                        initialisation,
                        "_no_grad_trunc_normal_",
                        _without_looking(getattr(initialisation, "_no_grad_trunc_normal_", None)),
                    ),
                ]
            )
        )
        stack.callback(_say_which_modes_are_on)
        stack.enter_context(mode)
        yield mode


@contextmanager
def _addresses_refused() -> Iterator[None]:
    """A mode that is made within refuses ``data_ptr()`` of its tensors, instead of answering with a null pointer."""
    with attributes_replaced([(functorch_config, "fake_tensor_allow_unsafe_data_ptr_access", False)]):
        yield


def _say_which_modes_are_on() -> None:
    """Set PyTorch's flags by the modes that are on.

    Each mode puts back on leaving what it found on entering. If one that was on before is left within, the mode that
    is left last puts back that one's flags: from then on Dynamo would believe in a mode, and compile all anew.
    """
    modes: Any = importlib.import_module("torch.utils._python_dispatch")
    on = modes._get_current_dispatch_mode_stack()
    in_any, in_own = bool(on), any(not one.is_infra_mode() for one in on)
    compiled = any(not getattr(one, "ignore_compile_internals", bool)() for one in on)
    modes._is_in_torch_dispatch_mode, modes._is_in_non_infra_torch_dispatch_mode = in_any, in_own
    modes._is_in_any_mode_without_ignore_compile_internals = compiled
    getattr(modes, "set_is_in_mode_without_ignore_compile_internals", bool)(compiled)


@contextmanager
def _errors_told_once() -> Iterator[None]:
    """An operator that is given shapes that do not go together raises; the mode also logs that, traceback and all."""
    log = logging.getLogger("torch._subclasses.fake_tensor")

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
            if "torch._dynamo" in sys.modules and not told:
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
            whole = memo.get(storage._cdata)
            if whole is None:
                whole = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
                memo[storage._cdata] = whole
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
        converter: Any = getattr(getattr(mode, "fake_tensor_converter", None), "meta_converter", None)
        described: Any = getattr(getattr(converter, "describer", None), "lookup_tensor", None)
        for tensor in (first, second):
            _forget(tensor, getattr(converter, "tensor_memo", None))
            if described is not None and tensor in described:
                del described[tensor]
        swap(first, second)

    return swap_tensors


def _forget(tensor: torch.Tensor, memo: weakref.WeakValueDictionary[Any, torch.Tensor] | None) -> None:
    if memo is None:
        return
    keys = [reference.key for reference in weakref.getweakrefs(tensor) if isinstance(reference, weakref.KeyedRef)]
    for key in keys:
        if memo.get(key) is tensor:
            del memo[key]


def _without_looking(draw: Callable[..., torch.Tensor] | None) -> Callable[..., torch.Tensor]:
    """``_no_grad_trunc_normal_`` draws again until all numbers are within bounds; a fake tensor's are as they are."""

    def draw_truncated(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        if isinstance(tensor, FakeTensor) or draw is None:
            with torch.no_grad():
                return tensor.normal_()
        return draw(tensor, *arguments, **keywords)

    return draw_truncated


def is_compiled(*objects: object) -> bool:
    """Whether one of them came from ``torch.compile``: on fake tensors that runs as if it were not compiled."""
    return any(
        hasattr(one, "_torchdynamo_orig_callable")
        or (isinstance(one, torch.nn.Module) and any(hasattr(module, "_orig_mod") for module in one.modules()))
        for one in objects
    )
