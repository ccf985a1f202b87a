"""What holds the tensors that a call keeps, and the line that puts them there: in leaks, and in causes of peaks."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from perflab.measure.calls.workload import Workload
from perflab.measure.clocks.set_up import SetUpWorkload
from perflab.profiles.keepers import take_keepers
from perflab.profiles.peak import explain_peak
from perflab.profiles.take_peak import take_peak
from perflab.profiles.text import peak_texts
from perflab.results.peak import Keeper, Peak, PeakPart

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
KEEPING = "tests.harness.keeping_calls"


@pytest.fixture(scope="module")
def calls() -> ModuleType:
    """Calls whose holders collections look through, as nobody imports them before a session freezes what it has."""
    from tests.harness import keeping_calls

    return keeping_calls


def keepers_of(call: Callable[[], Any]) -> list[Keeper]:
    call()
    return take_keepers(Workload(call, (), {}), CPU)


def text_at(line: str) -> str:
    file, _, number = line.rpartition(":")
    assert file in ("tests/harness/test_keepers.py", "tests/harness/keeping_calls.py")
    return linecache.getline(str(ROOT / file), int(number)).strip()


@pytest.mark.parametrize(
    ("name", "holder", "kind", "grows"),
    [
        ("appends_the_loss", f"{KEEPING}.HISTORY", "list", True),
        ("appends_a_row", "Elsewhere.kept", "list", True),
        ("fills_a_dict", f"{KEEPING}.BY_STEP", "dict", True),
        ("replaces_a_value", f"{KEEPING}.LAST", "dict", False),
        ("hooked", "store of hook", "dict", False),
        ("with_a_variable", "last of call", "", False),
        ("registers_an_append", f"{KEEPING}.FILLED", "list", True),
    ],
)
def test_what_holds_a_kept_tensor_is_named_with_the_line_that_puts_it_there(
    calls: ModuleType, name: str, holder: str, kind: str, grows: bool
) -> None:
    call = getattr(calls, name)
    (found,) = keepers_of(call() if name in ("hooked", "with_a_variable") else call)
    assert text_at(found.line).endswith("# keeps")
    assert (found.holder, found.kind, found.grows) == (holder, kind, grows)


def test_what_grows_comes_before_what_is_replaced(calls: ModuleType) -> None:
    found = keepers_of(calls.TRAINER.call)
    assert [text_at(one.line).rpartition("# ")[2] for one in found] == ["trainer", "replaces"]
    assert [one.holder for one in found] == ["Trainer.losses", "Trainer.last"]
    assert (found[0].kind, found[0].many) == ("deque", len(calls.TRAINER.losses))


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


def test_a_call_that_keeps_nothing_is_not_watched(calls: ModuleType) -> None:
    assert keepers_of(lambda: calls.MODEL(torch.ones(4, 8)).sum()) == []


def step(calls: ModuleType, *, keeps: bool) -> Callable[[], torch.Tensor]:
    history: list[Any] = []

    def call() -> torch.Tensor:
        loss: torch.Tensor = calls.loss_of_a_step()
        if keeps:
            history.append(loss)  # keeps
        return loss.detach()

    for _ in range(3):
        call()
    return call


def test_the_cause_of_a_higher_peak_names_what_keeps_it_first(calls: ModuleType) -> None:
    base, head = (take_peak(Workload(step(calls, keeps=one), (), {}), CPU) for one in (False, True))
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
