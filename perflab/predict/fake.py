"""Fake tensors: what runs on them computes shapes and dtypes, and no numbers. And what to say of code that wants some.

PyTorch's own mode does nearly all of it. Here is what it lacks for a case that is written for real tensors: modules
that change their dtype, initialisation that looks at what it drew, compiled code, and addresses, which are an error
here and no crash.
"""

from __future__ import annotations

import importlib
import logging
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.utils
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from perflab.predict.patching import attributes_replaced

_TORCH = Path(torch.__file__).parent
_PERFLAB = Path(__file__).parents[1]
_LAB = _PERFLAB / "lab"
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = Path(sysconfig.get_path("purelib"))

_MACHINERY = (
    *(
        f"{_TORCH}/{name}"
        for name in [
            "_subclasses/",
            "_dynamo/",
            "_compile.py",
            "_decomp/",
            "_meta_registrations.py",
            "_prims/",
            "_prims_common/",
            "_refs/",
            "_ops.py",
            "overrides.py",
            "utils/_stats.py",
            "utils/_python_dispatch.py",
        ]
    ),
    f"{Path(__file__).parent}/",
)
functorch_config: Any = importlib.import_module("torch._functorch.config")

_WANTS_NUMBERS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
_SAYS_SO = (
    ".numpy() is not supported for tensor subclasses",
    "Cannot access data pointer of",
    "unsupported format string passed to FakeTensor",
    "Can't pickle local object 'WeakValueDictionary",
    "Could not guard on data-dependent expression",
    "Could not extract specialized integer from data-dependent expression",
)
"""What else is raised where numbers, or a place in memory, are asked for: ``numpy()``, ``data_ptr()``,
``f"{loss:.2f}"``, ``torch.save``, and sizes that hang on values."""


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
        stack.enter_context(mode)
        yield mode


@contextmanager
def _addresses_refused() -> Iterator[None]:
    """A mode that is made within refuses ``data_ptr()`` of its tensors, instead of answering with a null pointer."""
    with attributes_replaced([(functorch_config, "fake_tensor_allow_unsafe_data_ptr_access", False)]):
        yield


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


def what_needs_numbers(error: BaseException) -> str | None:
    """Which line of the user's asked a fake tensor for its numbers: ``train.py:17: `loss.item()` ``.

    None for any other error, and where no line is the user's. Of the traceback it is the innermost frame outside of
    PyTorch, of the standard library and of this package, whose lab counts as a user. The path is relative to the
    working directory where it lies below.
    """
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and all(current is not one for one in chain):
        chain.append(current)
        if _is_about_numbers(current):
            # PyTorch may have caught it in its own code, and raised another where the user's line is.
            return next(filter(None, map(_innermost_line, reversed(chain))), None)
        current = current.__cause__ or current.__context__
    return None


def without_machinery(error: BaseException) -> BaseException:
    """The error, its traceback cut where what makes tensors fake begins: there a real tensor's would have ended."""
    last, entry = None, error.__traceback__
    while entry is not None:
        filename = entry.tb_frame.f_code.co_filename
        if _is_the_users(filename) or (last is not None and not filename.startswith(_MACHINERY)):
            last = entry
        elif last is not None and not _is_the_users_below(entry):
            last.tb_next = None
            break
        entry = entry.tb_next
    return error


def _is_the_users_below(entry: TracebackType) -> bool:
    below = entry.tb_next
    while below is not None:
        if _is_the_users(below.tb_frame.f_code.co_filename):
            return True
        below = below.tb_next
    return False


def _is_about_numbers(error: BaseException) -> bool:
    return isinstance(error, _WANTS_NUMBERS) or any(words in str(error) for words in _SAYS_SO)


def _innermost_line(error: BaseException) -> str | None:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_the_users(frame.filename):
            path = Path(frame.filename)
            if path.is_relative_to(Path.cwd()):
                path = path.relative_to(Path.cwd())
            return f"{path}:{frame.lineno}: `{frame.line}`" if frame.line else f"{path}:{frame.lineno}"
    return None


def _is_the_users(filename: str) -> bool:
    path = Path(filename)
    if filename.startswith("<") or path.is_relative_to(_TORCH):
        return False
    if path.is_relative_to(_PERFLAB):
        return path.is_relative_to(_LAB)
    return path.is_relative_to(_INSTALLED) or not path.is_relative_to(_STANDARD_LIBRARY)


def is_compiled(*objects: object) -> bool:
    """Whether one of them came from ``torch.compile``: on fake tensors that runs as if it were not compiled."""
    return any(
        hasattr(one, "_torchdynamo_orig_callable")
        or (isinstance(one, torch.nn.Module) and any(hasattr(module, "_orig_mod") for module in one.modules()))
        for one in objects
    )
