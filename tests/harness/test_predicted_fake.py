"""Fake tensors for cases written for real ones, in contexts of all kinds; the line that asks one for its numbers."""

from __future__ import annotations

import contextlib
import copy
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._device
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack,
    is_in_any_mode_without_ignore_compile_internals,
    is_in_torch_dispatch_mode,
)
from torch.utils.flop_counter import FlopCounterMode

from perflab.internals.of_torch.compiler import is_compiled
from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.devices import cuda_means_cpu
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.cuda.fake_errors import what_needs_numbers


def initialisers() -> list[str]:
    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    return sorted(name for name in names if callable(getattr(nn.init, name)))


@pytest.mark.parametrize("name", initialisers())
def test_every_initialisation_runs_on_fake_tensors(name: str) -> None:
    with fake_tensors():
        weight = nn.Conv1d(4, 4, 3).weight if name == "dirac_" else nn.Linear(4, 4).weight
        more = {"constant_": (0.5,), "sparse_": (0.5,)}.get(name, ())
        getattr(nn.init, name)(weight, *more)
        assert isinstance(weight, FakeTensor)


def test_initialisation_of_real_tensors_stays_within_bounds() -> None:
    with fake_tensors():
        pass
    assert nn.init.trunc_normal_(torch.empty(200), std=1.0, a=-0.5, b=0.5).abs().max() <= 0.5


@pytest.mark.parametrize(
    ("convert", "dtype"),
    [
        (lambda module: module.bfloat16(), torch.bfloat16),
        (lambda module: module.half(), torch.float16),
        (lambda module: module.to(torch.float64), torch.float64),
        (lambda module: module.to("cpu", torch.bfloat16), torch.bfloat16),
        (lambda module: module.to_empty(device="cpu"), torch.float32),
    ],
)
def test_a_module_changes_its_dtype_with_its_gradients_and_its_ties(
    convert: Callable[[nn.Module], nn.Module], dtype: torch.dtype
) -> None:
    outside = nn.Linear(4, 4)
    with fake_tensors():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), outside)
        model[1].weight = model[0].weight
        model(torch.randn(2, 4)).sum().backward()
        held = model[0].weight
        convert(model)
        assert {one.dtype for one in model.parameters()} == {dtype}
        assert model[0].weight is held is model[1].weight
        model(torch.randn(2, 4, dtype=dtype)).sum().backward()


@pytest.mark.parametrize("fake", [False, True])
def test_a_module_is_copied_as_a_real_one_is(fake: bool) -> None:
    with fake_tensors() if fake else nullcontext():
        model = nn.ModuleDict({"first": nn.Linear(4, 4), "tied": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4)})
        model["tied"].weight = model["first"].weight
        model.flat = torch.zeros(10)
        model.half = model.flat[5:]
        model["first"](torch.randn(2, 4)).sum().backward()
        copied = copy.deepcopy(model)
    assert type(copied.flat) is type(model.flat)
    assert copied["tied"].weight is copied["first"].weight is not model["first"].weight
    assert isinstance(copied["first"].weight, nn.Parameter)
    assert copied["first"].weight.requires_grad
    assert copied["first"].weight.grad is None  # as PyTorch does with parameters
    assert copied["norm"].running_mean.shape == (4,)
    storages = [tensor.untyped_storage() for tensor in (copied.half, copied.flat, model.flat)]
    assert storages[0]._cdata == storages[1]._cdata != storages[2]._cdata
    assert copied.half.storage_offset() == 5
    assert storages[0].nbytes() == 40


def test_only_leaves_are_copied_and_a_module_without_memory_gets_some() -> None:
    with fake_tensors(), pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(torch.ones(2, requires_grad=True) * 2)
    with fake_tensors():
        assert nn.Linear(4, 4, device="meta").to_empty(device="cpu").weight.device.type == "cpu"


def test_an_address_is_refused_and_no_crash() -> None:
    with fake_tensors():
        with pytest.raises(RuntimeError, match="Cannot access data pointer"):
            torch.randn(3).data_ptr()
        with pytest.raises(RuntimeError, match="Cannot access data pointer"):
            torch.from_dlpack(torch.randn(3))


def test_compiled_code_runs_as_it_is_written() -> None:
    seen: list[type] = []

    def product(rows: Tensor) -> Tensor:
        seen.append(type(rows))
        return rows @ rows

    before = torch.compile(product)
    with fake_tensors():
        within = torch.compile(product)
        rows = torch.randn(4, 4)
        assert before(rows).shape == within(rows).shape == (4, 4)
    assert seen == [FakeTensor, FakeTensor]
    assert is_compiled(before)
    assert is_compiled(torch.compile(nn.Linear(2, 2)))
    assert not any(map(is_compiled, (product, nn.Linear(2, 2), 3)))


def what_is_said(ask: Callable[[Tensor], Any]) -> str | None:
    with fake_tensors():
        with pytest.raises(Exception) as raised:  # noqa: PT011, of many types
            ask(torch.randn(3))
        return what_needs_numbers(raised.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda rows: rows.sum().item(),
        lambda rows: rows.tolist(),
        lambda rows: rows.numpy(),
        lambda rows: float(rows[0]),
        lambda rows: rows[rows > 0],
        lambda rows: rows.nonzero(),
        lambda rows: rows.data_ptr(),
        lambda rows: torch.equal(rows, rows),
        lambda rows: f"{rows[0]:.2f}",
        lambda rows: 1 if rows.sum() > 0 else 2,
        lambda rows: [float(one) for one in rows],
    ],
)
def test_a_line_that_needs_numbers_is_named(ask: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    said = what_is_said(ask)
    assert said is not None
    place, _, line = said.partition(": ")
    assert place == f"tests/harness/test_predicted_fake.py:{ask.__code__.co_firstlineno}"
    assert line.startswith("`lambda rows:")


def test_the_innermost_line_of_the_users_is_named_with_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_loss.py").write_text("def read(loss):\n    return loss.item()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    from a_loss import read  # type: ignore[import-not-found]

    assert what_is_said(lambda rows: read(rows.sum())) == "a_loss.py:2: `return loss.item()`"
    del sys.modules["a_loss"]


def test_a_line_of_the_lab_is_a_users(monkeypatch: pytest.MonkeyPatch) -> None:
    from perflab.lab.train.text import unigram_entropy

    monkeypatch.chdir(Path(__file__).parents[2])
    said = what_is_said(lambda rows: unigram_entropy(rows.to(torch.uint8)))
    assert said is not None
    assert said.startswith("perflab/lab/train/text.py:")


def test_other_errors_name_no_line_and_what_was_raised_because_of_it_is_followed_back() -> None:
    assert what_is_said(lambda rows: rows @ torch.randn(4)) is None
    assert what_needs_numbers(ValueError("loss is not finite")) is None

    def ask(rows: Tensor) -> float:
        try:
            return rows.sum().item()
        except RuntimeError as error:
            raise ValueError("the loss could not be logged") from error

    said = what_is_said(ask)
    assert said is not None
    assert said.endswith("`return rows.sum().item()`")


@pytest.mark.parametrize(
    "read",
    [
        lambda: [rates.tolist() for rates in torch.linspace(0, 0.1, 12).split([3, 3, 6])],  # ConvNeXt's drop paths
        lambda: [rate.item() for rate in torch.linspace(0, 0.1, 4, device="cpu")],
        lambda: torch.tensor([[1, 16, 16]], device="cuda").prod(-1).tolist(),
        lambda: int(torch.stack([torch.tensor(2), torch.arange(4).sum()]).max(0).values),
        lambda: f"{torch.logspace(0, 2, 3).cumsum(0)[1]:.1f}" if (torch.arange(3) < 3).all() else "",
        lambda: list(range(torch.as_tensor([3, 5])[1])),
    ],
)
def test_values_that_hang_on_constants_alone_are_those_of_real_tensors(read: Callable[[], Any]) -> None:
    with fake_tensors(), as_cuda():
        fake = read()
    with contextlib.nullcontext() if torch.cuda.is_available() else cuda_means_cpu((8, 0)):
        assert fake == read()


def written_to(write: Callable[[Tensor], Any]) -> Tensor:
    constant = torch.linspace(0, 1, 4)
    write(constant)
    return constant


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3),
        lambda: torch.rand_like(torch.linspace(0, 1, 3)),
        lambda: torch.linspace(0, 1, 3) * torch.randn(3),
        lambda: torch.arange(5000),
        lambda: torch.ones(3),
        lambda: written_to(lambda constant: constant.add_(torch.randn(4))),
        lambda: written_to(lambda constant: constant[1:3].zero_()),
        lambda: written_to(lambda constant: constant.data.fill_(2)),
        lambda: written_to(lambda constant: setattr(constant, "data", torch.randn(4))),
    ],
)
def test_values_that_hang_on_more_than_constants_are_not_known(make: Callable[[], Tensor]) -> None:
    state = torch.get_rng_state()
    with fake_tensors(), as_cuda(), pytest.raises(DataDependentOutputException):
        make().tolist()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_constant_has_no_address_and_keeps_nothing_alive() -> None:
    with fake_tensors(), as_cuda():
        constant = torch.tensor([1.0, 2.0])
        with pytest.raises(RuntimeError, match="Cannot access data pointer"):
            constant.data_ptr()
        gone = weakref.ref(constant)
        doubled = constant * 2
        del constant
        assert gone() is None
        assert doubled.tolist() == [2.0, 4.0]


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
