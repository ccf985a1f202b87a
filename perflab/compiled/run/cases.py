"""Runs compiled cases in pytest: each registered kernel on each architecture is a test.

All chosen kernels are compiled at once, in separate processes, before the first of these tests. Each test is judged
after its body.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from concurrent.futures import wait
from typing import Any, cast

import pytest

from perflab.base.data import changed, to_plain
from perflab.base.errors import KernelError, PerflabError, UsageError
from perflab.compiled.compiler.example import load_examples
from perflab.compiled.compiler.pool import CompilerPool
from perflab.compiled.judge import is_broken
from perflab.compiled.run.kernels import HOW_TO_REGISTER, Choice, choices_of, result_of
from perflab.compiled.settings import Compiling
from perflab.compiled.store import KernelStore
from perflab.noting import case_id
from perflab.results.compiled import CompiledCase, CompiledKernel, KernelResources
from perflab.results.records import Verdict
from perflab.results.result import Result
from perflab.running.case.locks import machine_turn
from perflab.running.case.perf import CaseState
from perflab.running.case.progress import ProgressLine
from perflab.running.case.statements import no_time_left
from perflab.running.case.verdicts import failure_of, unless_unchecked, unmeasured
from perflab.running.config.kinds import is_worker
from perflab.running.config.marker import for_case
from perflab.running.config.reading import settings_of
from perflab.settings.settings import Settings, TotalBudget
from perflab.store.json_files import check_writable

CHOICES = pytest.StashKey[list[Choice]]()
FIXTURE = "compiled_kernel"
_NAME = "perflab-compiled"
_STATE = pytest.StashKey[CaseState]()


def spread(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that asks for ``compiled_kernel`` by every registered kernel and architecture."""
    problem = None
    try:
        choices = _choices(metafunc.config)
        metafunc.parametrize(FIXTURE, choices, ids=list(map(str, choices)), indirect=True)
    except PerflabError as error:
        problem = str(error)  # reported below, since pytest would also show the traceback of an error raised here
    if problem is not None:
        pytest.fail(problem, pytrace=False)


def _choices(config: pytest.Config) -> list[Choice]:
    """Return every registered kernel for every architecture; they are looked up once a session.

    Raises:
        PerflabError: nothing is registered, or a registration or a setting cannot be used.
    """
    if CHOICES not in config.stash:
        settings = settings_of(config).part(Compiling)
        if not settings.kernels:
            raise KernelError("a test uses compiled_kernel, but no kernels are registered", HOW_TO_REGISTER)
        config.stash[CHOICES] = choices_of(
            {
                registration: {
                    arch: [example.name for example in load_examples(registration, arch)] for arch in settings.archs
                }
                for registration in settings.kernels
            }
        )
    return config.stash[CHOICES]


def kernel_for(request: pytest.FixtureRequest) -> KernelResources:
    """Return the value of the ``compiled_kernel`` fixture.

    Raises:
        UsageError: the test got the fixture by ``getfixturevalue``, so that the compiling plugin was not loaded.
    """
    cases = request.config.pluginmanager.getplugin(_NAME)
    if not isinstance(cases, CompiledCases):
        raise UsageError(
            f"{request.node.nodeid} got the compiled_kernel fixture by getfixturevalue(), unseen by collection",
            "name compiled_kernel among the test's arguments",
        )
    kernel: Any = cases.kernel_for(request.node, request.param)
    return cast("KernelResources", kernel)  # None if the kernel does not compile; the test's body does not run then


class CompiledCases:
    """Hooks around the compiled cases of this process."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._store = KernelStore(settings.baselines)
        self._progress = ProgressLine(config)
        self._budget = TotalBudget(settings.total_budget_s)
        self._waiting: dict[Choice, None] = {}
        self._found: dict[Choice, CompiledKernel | KernelError] = {}
        self._pool: CompilerPool | None = None

    def check(self, items: list[pytest.Item]) -> None:
        """Detect errors early that would otherwise appear late: bad markers, unusable baselines.

        Raises:
            PerflabError: the first problem found.
        """
        for item in items:
            for_case(self._settings, item)
            choice = getattr(item, "callspec", None) and item.callspec.params.get(FIXTURE)  # type: ignore[attr-defined]
            if isinstance(choice, Choice):
                self._waiting[choice] = None
        if self._settings.update or self._settings.update_new:
            check_writable(self._settings.baselines)
        for registration in self._settings.part(Compiling).kernels:
            self._store.check(registration)

    def kernel_for(self, item: pytest.Item, choice: object) -> KernelResources | None:
        """Return the value of the ``compiled_kernel`` fixture.

        None if the kernel does not compile, in which case the test's body does not run.
        """
        if not isinstance(choice, Choice):
            raise UsageError(
                f"{item.nodeid} parametrizes compiled_kernel itself",
                "leave that to perflab: it knows what is registered",
            )
        left_s = self._budget.left_s()
        if choice not in self._found and (left_s is None or left_s > 0):
            # pytest-xdist distributes the cases during the run: each worker compiles only the kernels that it gets.
            self._compile([choice] if is_worker(self._config) else [*{choice: None, **self._waiting}])
        found = self._found.get(choice)
        if found is None:
            item.stash[_STATE].short_of = [no_time_left(0.0, self._settings.total_budget_s)]
            pytest.skip(f"not compiled: {self._settings.time_is_over}")
        if isinstance(found, KernelError):
            raise found
        item.stash[_STATE].result = result_of(case_id(item), found, self._store)
        return found.resources

    def _compile(self, choices: list[Choice]) -> None:
        self._progress.begin("kernels")
        # Never during a measurement, since compilers keep all cores busy.
        with machine_turn(self._progress.waiting, self._budget.is_over), self._open_pool() as pool:
            futures = {pool.submit(one.registration, one.name, one.arch): one for one in choices}
            pending = set(futures)
            while pending:
                self._progress.show(f"compiling, {len(pending)} of {len(futures)} left")
                left_s = self._budget.left_s()
                if left_s is not None and left_s <= 0:
                    break
                done, pending = wait(pending, timeout=0.5 if left_s is None else min(0.5, left_s))
                for future in done:
                    error = future.exception()  # a registration may have changed since collection
                    self._found[futures[future]] = error if isinstance(error, KernelError) else future.result()
            self._progress.clear()
        for choice in choices:
            self._waiting.pop(choice, None)

    @contextlib.contextmanager
    def _open_pool(self) -> Iterator[CompilerPool]:
        """Provide a compiler pool for the length of the block.

        The pool has as many processes as cores, and is closed after the block. In a worker of pytest-xdist it has one
        process, which is kept until the session ends.
        """
        if not is_worker(self._config):
            with CompilerPool(patience_s=self._settings.timeout_s) as pool:
                yield pool
            return
        if self._pool is None:
            self._pool = CompilerPool(1, self._settings.timeout_s)
        yield self._pool

    def pytest_unconfigure(self) -> None:
        """End the compiler processes."""
        if self._pool is not None:
            self._pool.close()

    # --- around each test -----------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Reset the state of a compiled case, also if the test is run again; skip it where kernels are not compiled."""
        if FIXTURE not in getattr(item, "fixturenames", ()):
            return
        item.stash[_STATE] = CaseState(case_id(item), self._settings)
        if self._settings.against is not None:
            pytest.skip("compiled kernels are compared with their baselines, not by --perf-against")
        if self._settings.predict:
            pytest.skip("compiled, not predicted: leave --perf-predict out, or call `perflab kernels`")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run the test's body, then judge its kernel; if the kernel does not compile, judge it and skip the body."""
        state = item.stash.get(_STATE, None)
        result = state.result if state is not None else None
        if state is not None and result is not None:
            now = _of(result).now
            if now.resources is None or now.passed_over:  # the test's body has nothing to check
                self._conclude(state, result)
        outcome = yield
        if state is not None and result is not None:
            self._conclude(state, result)
        return outcome

    def _conclude(self, state: CaseState, result: Result) -> None:
        settings = self._settings
        broken = is_broken(_of(result).now)
        if not broken:
            result = state.result = changed(result, judgement=unless_unchecked(result.judgement, settings))
        state.done = True
        if result.judgement.verdict is Verdict.SKIPPED:
            pytest.skip("; ".join(result.judgement.reasons))
        failure = failure_of(self._config, result, settings, broken=broken)
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the case's result to its report."""
        report = yield
        if report.when == "teardown" or FIXTURE not in getattr(item, "fixturenames", ()):
            return report
        state = item.stash[_STATE]
        result = state.result
        if result is None or not state.done:
            unjudged = unmeasured(case_id(item), None, report, state.short_of)
            compiled = result.outcome if result is not None else None
            result = changed(unjudged, outcome=compiled) if unjudged is not None else None
        if result is not None:
            report.perflab = to_plain(result)  # type: ignore[attr-defined]
        return report


def _of(result: Result) -> CompiledCase:
    assert isinstance(result.outcome, CompiledCase)
    return result.outcome


def run(config: pytest.Config, settings: Settings, items: list[pytest.Item]) -> None:
    """Register the hooks that run the compiled cases.

    Raises:
        PerflabError: the first error found that would otherwise appear late.
    """
    cases = CompiledCases(config, settings)
    config.pluginmanager.register(cases, _NAME)
    cases.check(items)
