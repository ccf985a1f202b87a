"""Small modules and functions, traced as they are: on fake tensors, or on real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.memory.account import Account, account_of
from perflab.predicted.prediction import Work, traced
from perflab.predicted.trace.operators import Hidden
from perflab.predicted.trace.trace import Alloc, Free, Op, Trace

HERE = Path(__file__).parent


def nothing() -> None:
    """Nobody wants to know when a span ends."""


def work(call: Callable[[], Any], *roots: Any) -> Work:
    """A call without phases."""
    return Work(lambda _mark: call(), (call, *roots))


def phased(**phases: Callable[[], Any]) -> Work:
    """Calls that are phases, in this order; the first one's result is the call's."""

    def run(mark: Callable[[], None]) -> Any:
        results = []
        for phase in phases.values():
            results.append(phase())
            mark()
        return results[0]

    return Work(run, tuple(phases.values()), tuple(phases))


def stepped(model: nn.Module, rule: torch.optim.Optimizer, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Work:
    """A training step in phases."""

    def run(mark: Callable[[], None]) -> Tensor:
        found = loss(model(x))
        mark()
        found.backward()
        mark()
        rule.step()
        rule.zero_grad()
        mark()
        return found

    return Work(run, (model, x, rule), ("forward", "backward", "optimizer"))


def traced_as_is(what: Work) -> Trace:
    """On the tensors that it has, every layer of it."""
    return traced(what, Hidden(), whole=True).trace


def traced_fake(make: Callable[[], Work], *, whole: bool = True) -> Trace:
    """What is made on fake tensors."""
    with fake_tensors():
        return traced(make(), Hidden(), whole=whole).trace


def exact(trace: Trace) -> Account:
    """Its account, to the byte."""
    return account_of(trace, rounded=int)


def ops(trace: Trace) -> list[Op]:
    return [event for event in trace.events if isinstance(event, Op)]


def allocs(trace: Trace) -> list[Alloc]:
    return [event for event in trace.events if isinstance(event, Alloc)]


def frees(trace: Trace) -> list[Free]:
    return [event for event in trace.events if isinstance(event, Free)]


def named(trace: Trace, name: str) -> list[Op]:
    """The operators of that name."""
    return [op for op in ops(trace) if op.name == f"aten::{name}"]


def line_with(text: str, file: str) -> str:
    """Where this text stands in a test's file, as places tell it: ``tests/harness/file.py:12``."""
    path = Path(file)
    (number,) = [at for at, line in enumerate(path.read_text().splitlines(), start=1) if line.endswith(text)]
    return f"{path.relative_to(Path.cwd()).as_posix()}:{number}"
