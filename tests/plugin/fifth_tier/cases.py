"""Runs traced cases: counts operators, and judges the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest
from perflab.results.traced import TracedCase
from perflab.traced.stored import TracedStore
from torch.utils._python_dispatch import TorchDispatchMode

from perflab.base.data import to_plain
from perflab.noting import case_id
from perflab.results.records import Change, Judgement, Verdict
from perflab.results.result import Result
from perflab.running.case.verdicts import failure_of, unless_unchecked, unmeasured
from perflab.running.config.kinds import tier_asked_by
from perflab.settings.given import Given
from perflab.settings.settings import Settings

_RESULT = pytest.StashKey[Result]()


@dataclass(frozen=True)
class Tracing:
    """The settings of traced cases."""

    more: int
    """The number of calls by which an operator may grow."""


def read(given: Given) -> Tracing:
    """Read the options of the traced tier."""
    return Tracing(given.value("perf_traced_more", int))


class Counting(TorchDispatchMode):
    """Counts the calls of each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def judge(now: dict[str, int], before: dict[str, int] | None, more: int = 0) -> Judgement:
    """Judge the calls by those before: more than ``more`` further calls of an operator are worse."""
    if before is None:
        return Judgement(verdict=Verdict.NEW, reasons=["no baseline yet"])
    changes = {
        name: Change(before=float(before.get(name, 0)), now=float(now.get(name, 0)), ratio=1.0, limit=1.0)
        for name in {**now, **before}
    }
    grown = [name for name, one in changes.items() if one.now > one.before + more]
    return Judgement(
        verdict=Verdict.REGRESSED if grown else Verdict.OK, counts=changes, worse=["counts"] if grown else []
    )


def judge_runs(before: Result, now: Result) -> Judgement | None:
    """Judge one run's calls by another's."""
    if isinstance(before.outcome, TracedCase) and isinstance(now.outcome, TracedCase):
        return judge(now.outcome.operators, before.outcome.operators)
    return None


class TracedCases:
    """The hooks around traced cases."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config, self._settings = config, settings
        self._store = TracedStore(settings.baselines)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Count the operators of the test's body, then judge the counts."""
        if tier_asked_by(item) != "traced":
            return (yield)
        counting = Counting()
        with counting:
            outcome = yield
        case, now = case_id(item), dict(counting.calls)
        before = self._store.baseline(case)
        judgement = judge(now, before, self._settings.part(Tracing).more)
        result = Result(
            case=case,
            judgement=unless_unchecked(judgement, self._settings),
            outcome=TracedCase(operators=now, before=before),
        )
        item.stash[_RESULT] = result
        failure = failure_of(self._config, result, self._settings)
        if failure is not None:
            pytest.fail(failure, pytrace=False)
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the result to the report."""
        report = yield
        if report.when != "teardown" and tier_asked_by(item) == "traced":
            result = item.stash.get(_RESULT, None) or unmeasured(case_id(item), None, report)
            if result is not None:
                report.perflab = to_plain(result)
        return report


def run(config: pytest.Config, settings: Settings, items: list[pytest.Item]) -> list[pytest.Item]:
    """Register the hooks if there are traced cases; return the other cases."""
    own = [item for item in items if tier_asked_by(item) == "traced"]
    if own:
        config.pluginmanager.register(TracedCases(config, settings))
    return [item for item in items if item not in own]
