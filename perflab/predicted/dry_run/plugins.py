"""The pytest plugins of a dry run: each test runs in a fork, and a test that reads values is skipped.

A fork of this process has an empty allocator, and a crash ends one test alone. The stand-in for CUDA is written in C,
and so are PyTorch's extensions. A crash of such code ends the fork; the test fails, and its report says how the process
ended. CUDA is opened in the fork. If the collecting process has opened CUDA already, forks cannot use it, so tests run
in that process.

Values written by kernels are zero, so the outcome of a test that reads them means nothing. A test can see only values
that are copied from the device to the host: ``.item()``, ``==`` in an ``if`` and ``allclose`` do so. A test that copies
nothing sees shapes, sizes and errors, which are real.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from perflab.base.errors import UsageError
from perflab.base.user_lines import line_of
from perflab.internals.of_torch.compiler import load_compiler
from perflab.internals.of_torch.machine import can_open_cuda_in_a_fork
from perflab.measure.counts.collectives import Collective
from perflab.predicted.dry_run.start import OPTION, VARIABLE
from perflab.predicted.settings import Predicting
from perflab.predicted.world.lone_rank import LONE, LoneRank
from perflab.processes.lifeline import end_with_parent
from perflab.results.predicted import place_of
from perflab.running.config.kinds import is_perf_case
from perflab.running.config.marker import for_case
from perflab.running.config.reading import settings_of
from perflab.running.config.run_mode import refusing
from perflab.running.session.workers import log_reports, report_of, report_of_lost

if TYPE_CHECKING:
    from nocuda import Seen

_PLAYED = """\
rank {rank} of {size} was played, without the others: objects and numbers that another rank sends read as zeros
  -> if it needs them, play one rank: --perf-ranks={first}"""
VALUES = "perflab-values-read"
"""The name under which ``ValuesRead`` is registered as a plugin."""


def begin(config: pytest.Config) -> None:
    """Make a dry run's pytest session run its tests in forks, and skip tests that read values.

    Raises:
        pytest.UsageError: this process is no dry run, though the environment says so.
    """
    import nocuda

    with refusing(config):
        if not nocuda.is_active():
            raise UsageError(
                f"{VARIABLE} is set, and this process is no dry run",
                f"leave it to {OPTION} and `perflab dry-run -- COMMAND` to set it",
            )
    config.pluginmanager.register(ValuesRead(), VALUES)
    config.pluginmanager.register(Forked(config), "perflab-forked")


class Forked:
    """Plugin that runs each test in a fork."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run one test in a fork, and log its reports; None, for pytest's own way, if forks cannot open CUDA."""
        if "torch" in sys.modules and not can_open_cuda_in_a_fork():
            return None
        if is_perf_case(item):
            _load()
        log_reports(item, self._reports(item))
        return True

    def _reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        """Run a test; of a case in ranks first the other ranks to play, whose collectives the last one compares."""
        settings = settings_of(self._config)
        chosen = for_case(settings, item) if is_perf_case(item) else settings
        if chosen.world_size == 1:
            return self._run(item)[0]
        size, found = chosen.world_size, dict[int, list[Collective]]()
        first, *others = chosen.part(Predicting).ranks_of(size)
        for rank in others:
            item.stash[LONE] = LoneRank(rank, size)
            reports, found[rank] = self._run(item)
            if any(report.failed for report in reports):
                for report in reports:
                    report.sections.append(("perflab", _PLAYED.format(rank=rank, size=size, first=first)))
                return reports
        item.stash[LONE] = LoneRank(first, size, found)
        return self._run(item)[0]

    def _run(self, item: pytest.Item) -> tuple[list[pytest.TestReport], list[Collective]]:
        """Run a test in a fork; return its reports, and the collectives of the rank that it played, if any."""
        with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as trace:
            sys.stdout.flush()
            sys.stderr.flush()
            parent, child = os.getpid(), os.fork()
            if child == 0:
                end_with_parent(parent)
                self._in_the_fork(item, answer, trace)
            _, status = os.waitpid(child, 0)
            answer.seek(0)
            said = answer.read()
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 and said:
                plain, collectives = pickle.loads(said)
                return [report_of(self._config, one) for one in plain], collectives
            trace.seek(0)
            return [_crashed(item, status, trace.read().decode(errors="replace"))], []

    def _in_the_fork(self, item: pytest.Item, answer: IO[bytes], trace: IO[bytes]) -> None:
        """Run the test with the teardown of its fixtures, write its reports to ``answer``, and end the process."""
        status = 1
        with contextlib.suppress(BaseException):
            import torch

            torch.set_num_threads(1)  # a fork has no threads of the pool, and waiting for them would never end
            faulthandler.enable(trace)
            reports = runtestprotocol(item, log=False, nextitem=None)
            hook = self._config.hook
            plain = [hook.pytest_report_to_serializable(config=self._config, report=one) for one in reports]
            alone = item.stash.get(LONE, None)
            answer.write(pickle.dumps((plain, alone.collectives if alone is not None else [])))
            answer.flush()
            status = 0
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@functools.cache
def _load() -> None:
    """Import what every case would import in its own fork, which takes seconds: dispatch modes import the compiler."""
    importlib.import_module("perflab.predicted.dry_run.case")
    load_compiler()


def _crashed(item: pytest.Item, status: int, trace: str) -> pytest.TestReport:
    """Return the failed report of a test whose process ended before the test did."""
    if os.WIFSIGNALED(status):
        how = f"its process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    else:
        how = f"its process ended with status {os.WEXITSTATUS(status)} before it did"
    text = f"{item.nodeid}: {how}, in a dry run\n{_of_the_test(trace)}".rstrip()
    return report_of_lost(item, text, how, place_of(os.environ[VARIABLE], dry_run=True))


def _of_the_test(trace: str) -> str:
    """Return the crashed thread's frames in the output of ``faulthandler``, without frames that all tests have."""
    _, _, thread = trace.partition("Current thread")
    frames = [line for line in thread.splitlines()[1:] if line.startswith("  File ")]
    others = ("/_pytest/", "/pluggy/", "/perflab/", "/pytest/", "<frozen ")
    return "\n".join(line for line in frames if not any(one in line for one in others))


class ValuesRead:
    """Plugin that notes the running test's first line that reads a value, and then skips the test.

    A perf case is not skipped, nor is a test that raises another error than a failed assertion.
    """

    def __init__(self) -> None:
        self.line: str | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        """Note the first value that fixtures read, since the test's body may depend on the value."""
        self.line = None
        with self._watching():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Note the first value that the body reads. A perf case is judged by what it needs, so it is never skipped."""
        with self._watching():
            if is_perf_case(item):
                return (yield)
            try:
                outcome = yield
            except AssertionError:
                if self.line is None:
                    raise
        if self.line is not None:
            pytest.skip(f"dry run: {self.line} reads values of CUDA tensors, and nothing is computed")
        return outcome

    def _watching(self) -> AbstractContextManager[None]:
        import nocuda

        return nocuda.library().observing(nocuda.Seen.COPY, self._note)

    def _note(self, what: Seen, function: str, size_bytes: int, source: int, target: int) -> None:
        if self.line is not None or not source >= 0 > target:
            return
        line = line_of(sys._getframe(1)) or "backward"
        if "/_pytest/" not in line:  # pytest reads a tensor to show an assertion that has failed already
            self.line = line
