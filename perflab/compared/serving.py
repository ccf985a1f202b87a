"""The process of one side of an A/B comparison: cases wait for their turns and measure on request.

The session that started this process reads the answers; see ``perflab.compared``.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from perflab.base.data import Data, changed
from perflab.base.errors import UsageError
from perflab.base.identity import DEFAULT
from perflab.measure.calls.outputs import outputs_of
from perflab.measured.run.state import Learned, no_time, no_work
from perflab.measurement.measurement import is_as_fast_as_none
from perflab.measurement.turns import Turns
from perflab.noting import case_id
from perflab.processes.channel import Alive, hear, say
from perflab.processes.peer import Peer
from perflab.ranks.run import EndedError, wait_for_all
from perflab.running.case import fresh_process
from perflab.running.case.fresh_process import ranks_with
from perflab.running.case.perf import STATE, CaseState
from perflab.running.case.ranked import ranks_on_a_device
from perflab.tiers.job import Job, Serve
from perflab.turns import messages
from perflab.turns.start_sides import copies, stir

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload
    from perflab.measure.counts.counter import CallCounter
    from perflab.settings.settings import Settings


def begin(serve: Serve) -> None:
    """Randomise where objects lie in memory, and make an installed version's modules be found before others."""
    stir()
    if serve.first:
        sys.meta_path.insert(0, TakenFrom(serve.first))


def run_side(config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job) -> list[pytest.Item]:
    """Measure these cases when the session asks for them. A process without cases serves too, and reports that.

    Raises:
        PerflabError: the first error found that would otherwise appear late.
    """
    from perflab.measured.run.cases import run

    assert job.serve is not None
    server = Server(config, job, job.serve)
    config.pluginmanager.register(server, "perflab-server")
    return run(config, settings, items, job, server)


class Server:
    """Answers the session's questions about the cases of this process."""

    def __init__(self, config: pytest.Config, job: Job, serve: Serve) -> None:
        self._config = config
        self._job = job
        self._serve = serve
        self._root = config.rootpath
        self._outcome = ("passed", "")
        self._was_ready = False
        self.sides = 1
        """The number of processes that will hold the case at once, counting only those that do not hold it yet."""

    def measure(self, state: CaseState, workload: Workload, device: torch.device, counter: CallCounter | None) -> Any:
        """Serve one case until the session finishes it; return what the workload returned in its last call.

        Raises:
            UsageError: perf was called before in this case, or the function that it is given does no work.
        """
        environment = state.part(Learned).environment
        assert environment is not None
        if self._was_ready:
            raise UsageError(
                f"{state.case}: perf was called twice in one case", "call perf once per test, or parametrize it"
            )
        self._was_ready = True
        with Turns(workload, device, state.settings.plan, counter, state.settings.mode) as turns:
            ready = messages.Ready(
                case=state.case,
                device=str(device),
                environment=environment,
                parameters=state.parameters,
                phases=list(workload.phases),
                strays=self._strays(),
                taken=self._taken(),
                copies=self._copies(),
                mode=state.settings.mode,
            )
            self._say(ready)
            while True:
                question = self._heard()
                if isinstance(question, messages.Warm):
                    self._say(_warmed(state, workload, device, turns))
                elif isinstance(question, messages.Turn):
                    samples = turns.take(
                        question.repetitions, question.samples, rewarm=question.rewarm, core=question.core
                    )
                    phases_ns = {name: [one.phases_ns[name] for one in samples] for name in workload.phases}
                    own_ns, waited_ns = [one.total_ns for one in samples], [one.waited_ns for one in samples]
                    self._say(messages.Taken(samples_ns=own_ns, phases_ns=phases_ns, waited_ns=waited_ns))
                elif isinstance(question, messages.Weigh):
                    found = turns.weigh()
                    self._say(
                        messages.Weighed(
                            memory=found.memory,
                            counts=found.counts,
                            off=found.off,
                            clock=turns.clock,
                            launch_ns=found.launch_ns if state.settings.mode == DEFAULT else None,
                            kernels=counter.kernels if counter is not None else [],
                        )
                    )
                elif isinstance(question, messages.Examine):
                    profile, problem = turns.profile(question.budget_ns)
                    self._say(messages.Examined(profile=profile, problem=problem))
                elif isinstance(question, messages.TakeApart):
                    peak, problem = turns.take_apart()
                    self._say(messages.TakenApart(peak=peak, problem=problem))
                elif isinstance(question, messages.Finish):
                    turns.check_clock()
                    return workload.run()
                else:  # the other side died during its turns, so no more questions for this case will come
                    self._leave()

    def pass_on(self, state: CaseState, device: torch.device) -> None:
        """Let the ranks of a case, in processes of their own, answer the session's questions.

        Each rank serves as this process does, in step with the others, so rank 0 answers for all.

        Raises:
            RankError: a rank failed.
            pytest.skip.Exception: the ranks skipped the case.
        """
        job = changed(self._job, cases=[state.case], others=False)
        started: contextlib.AbstractContextManager[list[Peer[Data, messages.Answer]]] = ranks_with(
            self._config, job, state.settings.world_size, str(device), messages.ANSWERS
        )
        with started as ranks:
            self._answer_of_all(ranks)  # their greetings
            sides = self.sides * ranks_on_a_device(len(ranks), device)
            answer = self._answer_of_all(ranks, messages.SetUp(case=state.case, sides=sides))
            while not isinstance(answer, messages.Ended):
                self._say(answer)
                question = self._heard()
                if isinstance(question, messages.SetUp | messages.Bye):  # the other side died during its turns
                    self._leave()
                answer = self._answer_of_all(ranks, question)
            for rank in ranks:
                rank.dismiss(messages.Bye())
        state.work, state.facts, state.done = answer.work, answer.facts, True
        state.part(Learned).out_of_memory = answer.out_of_memory
        if answer.outcome == "skipped":
            pytest.skip(answer.text)

    def _answer_of_all(
        self, ranks: Sequence[Peer[Data, messages.Answer]], question: messages.Question | None = None
    ) -> messages.Answer:
        """Ask all ranks a question, and return their common answer: rank 0's, or that of one whose test has not passed.

        Raises:
            RankError: a rank failed.
        """
        # A rank that hangs is named before this process counts as hanging.
        self._say(Alive(for_s=2 * fresh_process.START_S))
        if question is not None:
            for rank in ranks:
                with contextlib.suppress(EndedError):  # its answer tells
                    rank.ask(question)
        found = wait_for_all(ranks, lambda message: _Said(message, time.monotonic_ns()), lambda said: said.is_early)
        early = [said.message for said in found.answers.values() if said.is_early]
        if not early or any(said.problem is not None for said in found.answers.values()):
            found.check()
        return early[0] if early else found.answers[0].message

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run each case when the session asks for it."""
        import torch

        if session.testsfailed:
            raise session.Interrupted("the tests could not be collected")
        at = {case_id(item): number for number, item in enumerate(session.items)}
        gc.freeze()  # a collection before each case would scan all objects of PyTorch's import: 0.1 s each time
        variables = dict(os.environ)
        self._say(
            messages.Hello(protocol=messages.PROTOCOL, cases=list(at), strays=self._strays(), variables=variables)
        )
        while isinstance(question := self._heard(), messages.SetUp):
            item = session.items[at[question.case]]
            following = None if question.following is None else session.items[at[question.following]]
            self._outcome, self.sides, self._was_ready = ("passed", ""), question.sides, False
            torch.manual_seed(0)  # unseeded inputs must not depend on how often other cases were called
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            outcome, text = self._outcome
            state = item.stash.get(STATE, None)
            out_of_memory = state.part(Learned).out_of_memory if state is not None else None
            self._say(
                messages.Ended(
                    case=case_id(item),
                    outcome=outcome if out_of_memory is None else "oom",
                    text=text,
                    work=state.work if state is not None else {},
                    facts=state.facts if state is not None else {},
                    out_of_memory=out_of_memory,
                )
            )
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test's outcome. It is reported to the session after the test's teardown."""
        if report.failed:
            self._outcome = ("failed", report.longreprtext)
        elif report.skipped and self._outcome[0] == "passed":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._outcome = ("skipped", getattr(report, "wasxfail", None) or reason.removeprefix("Skipped: "))

    def _say(self, message: messages.Answer | Alive) -> None:
        try:
            say(message)
        except OSError:
            self._leave()

    def _taken(self) -> bool:
        """Whether any module was imported from the folders that take precedence; true if there are no such folders."""
        first = tuple(folder + os.sep for folder in self._serve.first)
        files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
        return not first or any(file.startswith(first) for file in files)

    def _copies(self) -> list[str]:
        """Return the packages of this side's project that were imported from an installed copy.

        If an installed version is compared, the list is empty: its packages are meant to be installed copies.
        """
        return [] if self._serve.own is None else copies(sys.modules, {Path(self._serve.own), self._root})

    def _heard(self) -> messages.Question:
        try:
            return hear(messages.QUESTIONS)
        except (EOFError, OSError):
            self._leave()

    def _leave(self) -> NoReturn:
        """End this process, because the session that would receive the results has ended."""
        pytest.exit("the session that this process measured for has ended", returncode=pytest.ExitCode.INTERRUPTED)

    def _strays(self) -> list[str]:
        """Return the modules that came from the other side's tree: with them, code would be compared with itself."""
        if self._serve.foreign is None:
            return []
        foreign = self._serve.foreign + os.sep
        ours = tuple(folder + os.sep for folder in (self._serve.own or "\0", sys.prefix, sys.base_prefix))
        files = {
            name: file
            for name, module in sys.modules.copy().items()
            if (file := getattr(module, "__file__", None)) and os.path.isabs(file)  # torch.ops has "_ops.py"
        }
        return sorted(
            f"{name} ({file})"
            for name, file in files.items()
            if not file.startswith(ours)  # thousands are, and this is asked before each case
            and any(place.startswith(foreign) for place in (file, _resolved(file)))
            and not _resolved(file).startswith(ours)
        )


def _warmed(state: CaseState, workload: Workload, device: torch.device, turns: Turns) -> messages.Warmed:
    """Warm a case up, and return what was found out about its calls.

    Raises:
        UsageError: a call takes no time, or no longer than an empty one.
    """
    outputs = outputs_of(workload)
    warmup = turns.warm_up()
    if warmup.call_lasts_ns <= 0:
        raise no_time(state)
    if not workload.phases and is_as_fast_as_none(workload, warmup.call_lasts_ns, warmup.repetitions, device):
        raise no_work(state)
    return messages.Warmed(
        repetitions=warmup.repetitions,
        sample_ns=round(warmup.call_lasts_ns * warmup.repetitions),
        calls=warmup.calls,
        settled=warmup.settled,
        outputs=outputs,
    )


@dataclass(frozen=True)
class _Said:
    """A rank's answer to a question, and how the rank's test ended."""

    message: messages.Answer
    at_ns: int
    """The moment of the answer on the machine's monotonic clock."""

    @property
    def problem(self) -> str | None:
        """The failure of the rank's test; None if it did not fail."""
        ended = self.message if isinstance(self.message, messages.Ended) else None
        return ended.text if ended is not None and ended.outcome == "failed" else None

    @property
    def is_early(self) -> bool:
        """Whether the rank's test did not pass, so that the other ranks would wait for it in vain."""
        return isinstance(self.message, messages.Ended) and self.message.outcome != "passed"


_resolved_folder = functools.cache(os.path.realpath)


def _resolved(file: str) -> str:
    """Return the file's path with symbolic links in its folder resolved: a tree may be reached through such a link."""
    folder, name = os.path.split(file)
    return os.path.join(_resolved_folder(folder), name)


class TakenFrom(importlib.abc.MetaPathFinder):
    """A finder that takes top-level modules from the given folders first, even before the entries of ``sys.path``.

    pytest puts a test's own root folder on ``sys.path``, and ``python -m`` the working directory: both hold the code
    that an installed version is to be compared with.
    """

    _TESTS = ("conftest", "tests", "test")

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = [str(Path(folder)) for folder in folders]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec if one of the folders has the module, else None."""
        if path is not None or fullname in self._TESTS or fullname in sys.stdlib_module_names:
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, self._folders)
