"""A test can become a prediction in the middle of its body, inside contexts that end before it or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
import torch
import torch.utils._device
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack,
    is_in_any_mode_without_ignore_compile_internals,
    is_in_torch_dispatch_mode,
)
from torch.utils.flop_counter import FlopCounterMode

from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors


class Passing(TorchFunctionMode):
    """A mode of the user's own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch.device": lambda: torch.device("cpu"),
    "a function mode": Passing,
    "a dispatch mode": lambda: FlopCounterMode(display=False),
    "autocast in float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "no_grad": torch.no_grad,
}


def state() -> tuple[Any, ...]:
    """What contexts change."""
    return (
        [type(mode) for mode in _get_current_function_mode_stack()],
        [type(mode) for mode in _get_current_dispatch_mode_stack()],
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
        torch.get_default_device(),
        torch.utils._device.CURRENT_DEVICE,
        [is_in_torch_dispatch_mode(include_infra_modes=infra) for infra in (True, False)],
        is_in_any_mode_without_ignore_compile_internals(),
    )


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = state()
    yield
    assert state() == before


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_is_left_first_leaves_the_prediction_as_it_is(context: str) -> None:
    before = state()
    with ExitStack() as prediction:
        with CONTEXTS[context]():
            prediction.enter_context(fake_tensors())
            prediction.enter_context(as_cuda())
            assert isinstance(torch.ones(2, device="cuda"), FakeTensor)
        assert isinstance(torch.ones(2, device="cuda"), FakeTensor)
        assert "_Redirected" in [type(mode).__name__ for mode in _get_current_function_mode_stack()]
    assert state() == before


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_is_left_last_is_still_there_when_the_prediction_ends(context: str) -> None:
    before = state()
    with CONTEXTS[context]():
        within = state()
        with fake_tensors(), as_cuda():
            assert isinstance(torch.ones(2, device="cuda"), FakeTensor)
        assert state() == within
    assert state() == before


def test_contexts_within_contexts_are_left_in_any_order() -> None:
    before = state()
    with ExitStack() as prediction:
        with torch.device("cpu"), Passing():
            prediction.enter_context(fake_tensors())
            prediction.enter_context(as_cuda())
            with torch.device("cpu"), Passing():
                assert torch.ones(2).device.type == "cuda"
            assert torch.ones(2).device.type == "cuda"
        assert torch.ones(2, device="cuda").device.type == "cuda"
    assert state() == before


def test_the_default_device_can_be_set_and_put_back_around_a_prediction() -> None:
    torch.set_default_device("cpu")
    try:
        with fake_tensors(), as_cuda():
            assert isinstance(torch.ones(2, device="cuda"), FakeTensor)
        assert torch.get_default_device().type == "cpu"
    finally:
        torch.set_default_device(None)
