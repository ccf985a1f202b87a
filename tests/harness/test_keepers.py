"""What holds the tensors that a call keeps, and the line that puts them there: in leaks, and in causes of peaks."""

from __future__ import annotations

import inspect
import linecache
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from perflab.measure.calls.workload import Workload
from perflab.measure.clocks.set_up import SetUpWorkload
from perflab.profiles.explanation_text import peak_texts
from perflab.profiles.keepers import take_keepers
from perflab.profiles.peak import explain_peak
from perflab.profiles.take_peak import take_peak
from perflab.results.peak import Keeper, Peak, PeakPart

pytestmark = pytest.mark.usefixtures("whole_collections")
CPU = torch.device("cpu")
HISTORY: list[Any] = []
BY_STEP: dict[int, Any] = {}
LAST: dict[str, Any] = {}
MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
FILLED: list[Any] = []


@dataclass
class Row:
    step: int
    loss: torch.Tensor


class Trainer:
    def __init__(self) -> None:
        self.losses: deque[Any] = deque()
        self.last: Any = None
        self.call()

    def call(self) -> None:
        self.last = torch.ones(64)  # replaces
        self.losses.append(torch.ones(64))  # trainer


class Elsewhere:
    kept: list[Any] = []


TRAINER = Trainer()


def loss_of_a_step() -> torch.Tensor:
    loss = MODEL(torch.ones(4, 8)).sum()
    loss.backward(retain_graph=True)
    return loss


def appends_the_loss() -> None:
    loss = loss_of_a_step()
    HISTORY.append(loss)  # keeps
    torch.ones(4)


def appends_a_row() -> None:
    loss = loss_of_a_step()
    Elsewhere.kept.append(Row(1, loss))  # keeps


def fills_a_dict() -> None:
    BY_STEP[len(BY_STEP)] = {"loss": torch.ones(64)}  # keeps


def replaces_a_value() -> None:
    LAST["seen"] = torch.ones(64)  # keeps
    torch.ones(4)


def hooked() -> Callable[[], None]:
    model, store = nn.Linear(8, 8), dict[str, Any]()

    def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        store["output"] = output  # keeps

    model.register_forward_hook(hook)

    def call() -> None:
        model(torch.ones(4, 8)).sum()

    return call


def with_a_variable() -> Callable[[], None]:
    last = None

    def call() -> None:
        nonlocal last
        last = torch.ones(64)  # keeps
        assert last is not None

    return call


def registers_an_append() -> None:
    hidden = MODEL(torch.ones(4, 8))
    hidden.register_hook(FILLED.append)  # keeps
    hidden.exp().sum().backward()


def keepers_of(call: Callable[[], Any]) -> list[Keeper]:
    call()
    return take_keepers(Workload(call, (), {}), CPU)


def text_at(line: str) -> str:
    file, _, number = line.rpartition(":")
    assert file.endswith("test_keepers.py")
    return linecache.getline(__file__, int(number)).strip()


@pytest.mark.parametrize(
    ("call", "holder", "kind"),
    [
        (appends_the_loss, f"{__name__}.HISTORY", "list"),
        (appends_a_row, "Elsewhere.kept", "list"),
        (fills_a_dict, f"{__name__}.BY_STEP", "dict"),
        (replaces_a_value, f"{__name__}.LAST", "dict"),
        (hooked(), "store of hook", "dict"),
        (with_a_variable(), "last of call", ""),
        (registers_an_append, f"{__name__}.FILLED", "list"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_holds_a_kept_tensor_is_named_with_the_line_that_puts_it_there(
    call: Callable[[], Any], holder: str, kind: str
) -> None:
    (found,) = keepers_of(call)
    assert text_at(found.line).endswith("# keeps")
    assert (found.holder, found.kind) == (holder, kind)
    assert found.grows == (call not in (replaces_a_value,) and kind != "" and "store" not in holder)


def test_what_grows_comes_before_what_is_replaced() -> None:
    found = keepers_of(TRAINER.call)
    assert [text_at(one.line).rpartition("# ")[2] for one in found] == ["trainer", "replaces"]
    assert [one.holder for one in found] == ["Trainer.losses", "Trainer.last"]
    assert (found[0].kind, found[0].many) == ("deque", len(TRAINER.losses))


def test_a_batch_that_is_made_for_the_call_is_kept_by_whoever_appends_it() -> None:
    kept: list[Any] = []

    def call(batch: torch.Tensor) -> None:
        kept.append(batch)  # keeps

    workload = SetUpWorkload(call, (), {}, lambda: ((torch.ones(64),), {}), CPU)
    for _ in range(3):
        workload.make_ready(1)
        workload.run()
    peak = take_peak(workload, CPU)
    (found,) = peak.keepers
    assert text_at(found.line).endswith("# keeps")
    assert (found.holder, found.kind, found.many) == ("kept of call", "list", len(kept))


def test_a_call_that_keeps_nothing_is_not_watched() -> None:
    assert keepers_of(lambda: MODEL(torch.ones(4, 8)).sum()) == []


def step(*, keeps: bool) -> Callable[[], torch.Tensor]:
    history: list[Any] = []

    def call() -> torch.Tensor:
        loss = loss_of_a_step()
        if keeps:
            history.append(loss)  # keeps
        return loss.detach()

    for _ in range(3):
        call()
    return call


def test_the_cause_of_a_higher_peak_names_what_keeps_it_first() -> None:
    base, head = (take_peak(Workload(step(keeps=one), (), {}), CPU) for one in (False, True))
    found = explain_peak(base, head, "HEAD", head.peak_bytes - base.peak_bytes)
    line = inspect.getsourcelines(step)[1] + 6
    first = peak_texts(found)[0]
    assert "kept at " in first
    assert f"test_keepers.py:{line} in history of call, a list of " in first
    assert base.keepers == []


def test_inputs_that_grow_are_what_is_kept_and_what_was_kept_before_is_no_cause() -> None:
    def peak(blocks: int, *keepers: Keeper, grows_bytes: int = 0) -> Peak:
        parts = [PeakPart(category="inputs", size_bytes=blocks * 512, blocks=blocks)]
        return Peak(parts=parts, grows_bytes=grows_bytes, keepers=list(keepers))

    cache = Keeper(line="train.py:3", holder="train.CACHE")
    rows = Keeper(line="train.py:9", holder="train.ROWS", kind="list", many=1640, grows=True)
    found = explain_peak(peak(2, cache), peak(1642, rows, cache, grows_bytes=512), "HEAD", 1640 * 512)
    said = "+820 KiB 1640 more blocks, kept at train.py:9 in train.ROWS, a list of 1,640"
    assert peak_texts(found) == [said]
    found = explain_peak(peak(2, cache), peak(3, cache), "HEAD", 512)
    assert peak_texts(found) == ["+512 B 1 more block, inputs"]
