"""Who watches a trace sees every operator and may call it off; how long a prediction may trace, on a virtual clock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from perflab.measure.clocks import clock
from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.memory.account import account_of
from perflab.predicted.prediction import Proofs, Traced, Work, traced
from perflab.predicted.trace.unroll import same
from perflab.predicted.trace.watch import SHOW_EVERY, CalledOff, Watch
from tests.harness.traced import phased
from tests.harness.virtual_clock import VirtualClock

LAYERS = 6


class Counting(Watch):
    """Lets so many operators of the call itself pass, and so many of each part."""

    def __init__(self, at_most: int | None = None, in_parts: int | None = None) -> None:
        self.at_most, self.in_parts = at_most, in_parts
        self.seen = 0
        self.parts: dict[str, int] = {}
        self._part: str | None = None

    def operator(self) -> None:
        if self._part is None:
            self.seen += 1
            seen, most = self.seen, self.at_most
        else:
            self.parts[self._part] += 1
            seen, most = self.parts[self._part], self.in_parts
        if most is not None and seen > most:
            raise CalledOff(f"took more than {most} operators")

    @contextlib.contextmanager
    def part(self, what: str) -> Iterator[None]:
        self._part = what
        self.parts[what] = 0
        try:
            yield
        finally:
            self._part = None


def training() -> tuple[nn.Sequential, Work]:
    """A step of a model whose code goes on whatever ``Exception`` it meets, as a retry would."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 8)
    losses: list[torch.Tensor] = []

    def forward() -> torch.Tensor:
        try:
            loss = model(x).sum()
        except Exception:
            loss = x.sum().requires_grad_()
        losses.append(loss)
        return loss

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return model, phased(forward=forward, backward=lambda: losses.pop().backward(), optimizer=update)


def run(watch: Counting | None, *, proofs: Proofs | None = None, whole: bool = False) -> Traced:
    with fake_tensors(), as_cuda():
        return traced(training()[1], ON_CUDA, proofs=proofs, whole=whole, watch=watch)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_watched_is_traced_as_what_is_not(whole: bool) -> None:
    watch = Counting()
    seen, unseen = run(watch, whole=whole), run(None, whole=whole)
    assert same(seen.trace, unseen.trace)
    assert account_of(seen.trace) == account_of(unseen.trace)
    calls = sum(cost.calls for cost in account_of(seen.trace).costs)
    least = 2 * calls if whole else calls  # a warm-up and a trace of all, or of 4 and 3 layers of 6
    assert watch.seen >= least


def untouched() -> bool:
    hooks = torch.nn.modules.module
    modes = [*_get_current_dispatch_mode_stack(), *_get_current_function_mode_stack()]
    return not (modes or hooks._global_forward_pre_hooks or hooks._global_forward_hooks)


@pytest.mark.parametrize("whole", [False, True])
def test_called_off_at_any_operator_it_leaves_torch_and_the_model_as_they_were(whole: bool) -> None:
    watch = Counting()
    run(watch, whole=whole)
    wanted = run(None)
    for at_most in range(0, watch.seen, 31):  # forward, backward and optimizer, warm-up and trace
        with fake_tensors(), as_cuda():
            model, work = training()
            below = len(_get_current_dispatch_mode_stack())
            with pytest.raises(CalledOff, match=f"more than {at_most} operators"):
                traced(work, ON_CUDA, whole=whole, watch=Counting(at_most))
            assert len(_get_current_dispatch_mode_stack()) == below
            assert len(model) == LAYERS
            assert torch._C._current_graph_task_id() == -1
        assert untouched()
        assert torch.ones(2, 2).sum().item() == 4
    assert same(run(None).trace, wanted.trace)


def test_a_proof_that_is_called_off_is_a_note_and_not_tried_again() -> None:
    proofs = Proofs()
    first, second = (Counting(in_parts=20) for _ in range(2))
    found = run(first, proofs=proofs)
    assert found.layers_run == [3, 4]
    assert found.notes == [
        "few layers were traced, and it is not proven that all do the same: tracing every layer took "
        "more than 20 operators"
    ]
    assert first.parts == {"every layer": 21}
    assert run(second, proofs=proofs).notes == found.notes
    assert second.parts == {}
    assert same(found.trace, run(None, proofs=Proofs()).trace)


SECOND_NS = 10**9


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    virtual = VirtualClock()
    monkeypatch.setattr(clock, "read_ns", virtual.read_ns)
    monkeypatch.setattr(clock, "read_processor_ns", virtual.read_ns)
    return virtual


def allowed(
    show: Callable[[str], None], budget_s: float = 10, *, by_marker: bool = False, left_s: float | None = None
) -> Watch:
    return Watch(show, budget_s, by_marker=by_marker, left_s=left_s)


def operators(watch: Watch, time: VirtualClock, seconds: int, each_ms: int = 10) -> None:
    """Operators that take so long all in all."""
    for _ in range(seconds * 1000 // each_ms):
        watch.operator()
        time.advance(each_ms * 10**6)


def silent(_: str) -> None:
    """Nobody looks."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "took longer than --perf-budget=10 s; 1,000 operators so far (more: --perf-budget=60)"),
        (
            {"budget_s": 2.5, "by_marker": True},
            "took longer than @pytest.mark.perf(budget=2.5); 250 operators so far (more: budget=15)",
        ),
        (
            {"left_s": 4},
            "took longer than the run had left (--perf-total-budget); 400 operators so far",
        ),
        ({"left_s": 40}, "took longer than --perf-budget=10 s; 1,000 operators so far (more: --perf-budget=60)"),
    ],
)
def test_past_the_shorter_time_it_is_called_off_with_the_operators_so_far(
    time: VirtualClock, given: dict[str, Any], said: str
) -> None:
    watch = allowed(silent, **given)
    with pytest.raises(CalledOff) as end:
        operators(watch, time, 11)
    assert str(end.value) == said
    with pytest.raises(CalledOff):  # also for code that caught the first one
        watch.operator()


def test_time_counts_from_the_start_and_operators_are_shown_now_and_then(time: VirtualClock) -> None:
    shown: list[str] = []
    operators(allowed(shown.append), time, 9)
    assert len(shown) == 900 // SHOW_EVERY
    assert shown[0] == f"{SHOW_EVERY} operators, 1 s of 10 s"
    assert shown[-1] == "900 operators, 9 s of 10 s"


def test_a_part_has_a_budget_and_a_count_of_its_own_and_takes_none_of_the_one_outside(time: VirtualClock) -> None:
    shown: list[str] = []
    watch = allowed(shown.append)
    operators(watch, time, 6)
    with pytest.raises(CalledOff, match="1,000 operators so far"), watch.part("every layer"):
        operators(watch, time, 11)
    assert shown[-1] == "every layer: 1,000 operators, 10 s of 10 s"
    operators(watch, time, 3)
    assert shown[-1] == "900 operators, 9 s of 10 s"
    with pytest.raises(CalledOff, match="1,000 operators so far"):
        operators(watch, time, 2)


def test_what_the_run_has_left_is_for_all_parts_together(time: VirtualClock) -> None:
    watch = allowed(silent, left_s=12)
    operators(watch, time, 9)
    with pytest.raises(CalledOff, match=r"the run had left .*; 300 operators so far"), watch.part("other sizes"):
        operators(watch, time, 13)
    assert time.now_ns == 12 * SECOND_NS
    with pytest.raises(CalledOff, match=r"the run had left .*; 900 operators so far"):
        watch.operator()
