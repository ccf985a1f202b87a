"""Predicts one case: traces its callable on fake tensors, judges it, fails its test.

What a case's callable comes to, and how that stands beside its baseline. Around which tests tensors are fake, and what
an error on them means, ``fake_cases.py`` knows.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import pytest

from perflab.errors import BaselineError, InternalsError, UsageError
from perflab.measure.devices import current_device
from perflab.measured.store.times import BaselineStore
from perflab.plugin.case.progress import ProgressLine
from perflab.plugin.case.verdicts import compared_with, failure_of, unless_beyond, unless_unchecked
from perflab.plugin.config.settings import Settings
from perflab.plugin.session.folder import file_name_for, own_folder
from perflab.plugin.session.moved import Moved
from perflab.plugin.stash import FAKING
from perflab.predicted.gpus.roofline import roofline_ns
from perflab.predicted.judge.dry_run import explain_races, unless_races
from perflab.predicted.judge.judge import judge_predicted
from perflab.predicted.memory.account import peak_of
from perflab.predicted.records import PredictedBaseline, PredictedCase, Prediction, place_of
from perflab.predicted.run.efficiency import with_estimate
from perflab.predicted.run.exploring import Explorer, fit_of, work_of
from perflab.predicted.run.tracing_time import TracingTime
from perflab.predicted.settings import Predicting
from perflab.predicted.store.predictions import PredictedStore
from perflab.predicted.trace.watch import CalledOff
from perflab.reachable import reachable
from perflab.records import Judgement, Verdict
from perflab.results import Result
from perflab.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from perflab.measure.memory_snapshot import MemorySnapshot
    from perflab.measure.workload import Workload
    from perflab.plugin.case.perf import CaseState, Way
    from perflab.plugin.case.requirements import Claim
    from perflab.plugin.case.total_budget import TotalBudget
    from perflab.predicted.gpus.names import Gpu
    from perflab.predicted.prediction import Proofs
    from perflab.predicted.trace.trace import Trace

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


@dataclass
class Instead:
    """A case's part of the predicted tier, where it is predicted though nobody asked."""

    of: str | None = None
    """What it would have been skipped for."""
    until_judged: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Keeps its tensors fake until it is judged: it says in its body that it is to be predicted."""

    def skip(self, why: str) -> NoReturn:
        """Skip the case, which is not predicted."""
        pytest.skip(why if self.of is None else f"{self.of}; cannot be predicted, {why}")


class Predictions:
    """What all predictions of this process share."""

    def __init__(self, config: pytest.Config, settings: Settings, progress: ProgressLine) -> None:
        self._config = config
        self._settings = settings
        self._progress = progress
        self._store = PredictedStore(settings.baselines)
        self._moved = Moved(config, settings, "predicted")
        self._measured = BaselineStore(settings.baselines)
        self._proofs: Proofs | None = None
        self._mode: Any = None
        self._gpu = settings.part(Predicting).gpu
        self._place = place_of(self._gpu.name, dry_run=settings.dry_run)
        self._explorer = Explorer()

    def check(self, cases: list[str]) -> None:
        """Read the baselines that will be needed, while nothing is lost.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        self._store.check(self._place, cases)

    @contextlib.contextmanager
    def fake(self) -> Iterator[None]:
        """Tensors are fake within, and PyTorch does as it would on CUDA. In a dry run it is on CUDA."""
        if self._settings.dry_run:
            yield
            return
        from perflab.predicted.cuda.as_cuda import as_cuda
        from perflab.predicted.cuda.fake import fake_tensors

        was_faking, was_on = self._config.stash.get(FAKING, None), gc.isenabled()
        with fake_tensors(self._mode) as self._mode, as_cuda(divmod(self._gpu.architecture, 10)):
            self._config.stash[FAKING] = self
            gc.disable()  # millions of short-lived objects, and each pass looks at all of PyTorch's too
            try:
                yield
            finally:
                self._config.stash[FAKING] = was_faking
                if was_on:
                    gc.enable()

    def device(self) -> torch.device:
        """What stands for the GPU, in user code."""
        import torch

        return torch.device("cuda", 0)

    def record_memory(self, path: Path) -> contextlib.AbstractContextManager[MemorySnapshot]:
        """The predicted history of a block."""
        return _record_predicted(path, self._gpu)

    def from_here_on(self, state: CaseState, unmet: str, budget: TotalBudget) -> Way:
        """Predict a case that does not fit, from where it says so.

        Raises:
            BaselineError: the file of its baseline, which nobody was known to need, is damaged or foreign.
            pytest.skip.Exception: this version of PyTorch does not let us.
        """
        self.check([state.case])
        try:
            state.part(Instead).until_judged.enter_context(self.fake())
        except InternalsError as error:
            pytest.skip(f"{unmet}; cannot be predicted, {error.problem}")
        state.predicts, state.part(Instead).of = True, unmet
        return Predicted(state, self, budget)

    def of(self, state: CaseState, workload: Workload, left_s: float | None) -> Any:
        """Predict a case's callable, and return a fake result of its shape.

        Args:
            state: the case.
            workload: what is predicted of it.
            left_s: what the run has left of its total budget; None without one.

        Raises:
            UsageError: ``perf.fits`` was given what makes nothing to predict.
            pytest.skip.Exception: it calls no operator; or tracing takes longer than its budget, or than the run has.
        """
        from perflab.predicted.memory.snapshot import write_snapshot
        from perflab.predicted.prediction import ON_CUDA, Proofs, predict

        gpu = self._gpu
        show, budget_s = functools.partial(self._progress.show, doing="predicting"), state.settings.budget_s
        by_marker = budget_s != self._settings.budget_s
        time = TracingTime(show, budget_s, by_marker=by_marker, left_s=left_s)
        self._proofs = self._proofs or Proofs()
        try:
            if self._settings.dry_run:
                from perflab.predicted.dry_run.case import run_dry

                assert state.device is not None
                with current_device(state.device):
                    now, traced = run_dry(work_of(workload), gpu, time)
            else:
                now, traced = predict(work_of(workload), gpu, ON_CUDA, proofs=self._proofs, watch=time)
        except CalledOff as end:
            state.part(Instead).skip(f"tracing {end}")
        finally:
            without_fake_gradients(workload.roots)
        if not now.costs and not (now.dry_run is not None and now.launches):
            if self._baseline(state.case)[0] is not None:
                raise UsageError(
                    f"{state.case}: the callable calls no operator of PyTorch any more, and has a prediction stored",
                    "have it do its work, or remove what is stored: --perf-prune",
                )
            state.part(Instead).skip("the callable calls no operator of PyTorch, so there is nothing to predict")
        if self._settings.part(Predicting).snapshots:
            folder = own_folder(self._config.rootpath) / "snapshots"
            folder.mkdir(exist_ok=True)
            path = write_snapshot(
                traced.trace,
                folder / f"{file_name_for(state.case)}-predicted",
                workspace_bytes=now.workspace_bytes,
                time_of=lambda op: roofline_ns(op, gpu) or 0.0,
            )
            now = msgspec.structs.replace(now, notes=[*now.notes, f"timeline: {path.name}"])
        try:
            now = with_estimate(now, state.case, self._measured, self._store, gpu)
        except BaselineError as error:  # of a measured file, which this case has no need of
            now = msgspec.structs.replace(now, notes=[*now.notes, f"no estimate: {error.problem}"])
        now = self._explored(now, traced.trace, state, time)
        self._progress.clear()
        before, _ = self._baseline(state.case)
        state.done, state.outcome = True, PredictedCase(now=now, before=before, parameters=state.parameters)
        return traced.result

    def _explored(self, now: Prediction, trace: Trace, state: CaseState, time: TracingTime) -> Prediction:
        """With what fits. What goes wrong while the case is made for other sizes takes nothing from what is known."""
        gpu = self._gpu
        if self._settings.dry_run:  # other sizes would be run one by one
            return msgspec.structs.replace(now, fit=fit_of(now, gpu))
        try:
            with time.part("other sizes"):
                return msgspec.structs.replace(now, fit=self._explorer.fit(now, trace, state, gpu, time))
        except (InternalsError, UsageError):
            raise
        except CalledOff as end:
            why = f"tracing them {end}"
        except Exception as error:
            said = " ".join(str(error).split("\n")[0].split())
            why = f"build of perf.fits() raised {type(error).__name__}: {said}".removesuffix(": ")
        notes = [*now.notes, f"no larger sizes are known: {why}"]
        return msgspec.structs.replace(now, fit=fit_of(now, gpu), notes=notes)

    def _baseline(self, case: str) -> tuple[PredictedBaseline | None, str | None]:
        """The case's baseline, and the name that it is stored under if that is the case's old one."""
        before = self._store.baseline(self._place, case)
        was = self._moved.of(case) if before is None else None
        there = self._store.baseline(self._place, was) if was is not None else None
        return (before, None) if there is None else (there, was)

    def out_of_memory(self, state: CaseState, error: Exception) -> NoReturn:
        """End a dry run that the GPU has no room for: failed, if it has a baseline."""
        before, _ = self._baseline(state.case)
        said = f"out of memory on {self._gpu.name}: {str(error).partition(' Of the allocated ')[0]}"
        if before is not None:
            said = f"{said} It needed {format_bytes(before.peak_bytes)} when its baseline was saved."
        judgement = Judgement(verdict=Verdict.OOM if before is None else Verdict.REGRESSED, reasons=[said])
        state.result = Result(case=state.case, judgement=judgement, policy=state.settings.policy)
        if before is not None and state.settings.check != "off":
            pytest.fail(f"{state.case}: {said}", pytrace=False)
        pytest.skip(said)

    def judged(self, state: CaseState) -> Result:
        """A predicted case beside its baseline."""
        assert isinstance(state.outcome, PredictedCase)
        policy = state.settings.policy
        judgement = judge_predicted(state.outcome.now, state.outcome.before, policy)
        judgement = compared_with(judgement, self._baseline(state.case)[1])
        judgement = unless_beyond(judgement, state.settings, state.outcome.now.peak_bytes)
        judgement = unless_races(judgement, state.outcome.now)
        judgement = unless_unchecked(judgement, state.settings)
        return Result(case=state.case, judgement=judgement, outcome=state.outcome, policy=policy)

    def fail_if_worse(self, result: Result, settings: Settings) -> None:
        """Fail the test of a case that grew."""
        dry_run = result.outcome.now.dry_run if isinstance(result.outcome, PredictedCase) else None
        if result.judgement.verdict is Verdict.FAILED and dry_run is not None and dry_run.races:
            pytest.fail(explain_races(result.case, dry_run.races), pytrace=False)
        failure = failure_of(self._config, result, settings)
        if failure is not None:
            pytest.fail(failure, pytrace=False)


@contextlib.contextmanager
def _record_predicted(path: Path, gpu: Gpu) -> Iterator[MemorySnapshot]:
    """Record what a block allocates and frees; times in the file are predicted ones.

    What was there before the block is not known to it, so a block that frees such a tensor does not fall below the
    level that it began at.

    Args:
        path: where to write, without the ending ``.pickle``.
        gpu: what the times are of.

    Raises:
        OSError: the file cannot be written.
    """
    from perflab.measure.memory_snapshot import MemorySnapshot
    from perflab.predicted.memory.snapshot import write_snapshot
    from perflab.predicted.prediction import ON_CUDA
    from perflab.predicted.trace.modules import ModuleBook
    from perflab.predicted.trace.tracer import Tracer

    snapshot = MemorySnapshot(path.with_name(path.name + ".pickle"))
    tracer = Tracer(ModuleBook(), (), (), ON_CUDA)
    was_on = gc.isenabled()
    gc.disable()  # as while a call is traced: cyclic garbage is let go at no particular moment
    try:
        with tracer.watching():
            yield snapshot
    finally:
        if was_on:
            gc.enable()
    trace = tracer.trace()
    snapshot.peak_bytes = peak_of(trace)
    write_snapshot(trace, path, time_of=lambda op: roofline_ns(op, gpu) or 0.0)


def without_fake_gradients(roots: tuple[Any, ...]) -> None:
    """Take fake gradients off real parameters: a model of the whole session's is trained on by others."""
    import torch

    from perflab.torch_internals.fakes import is_fake

    for one in reachable(roots):
        if isinstance(one, torch.nn.Parameter) and not is_fake(one) and is_fake(one.grad):
            one.grad = None


@dataclass
class Predicted:
    """The ``Way`` of a predicted case."""

    state: CaseState
    predictions: Predictions
    budget: TotalBudget

    def requires(self, claim: Claim) -> Way:
        """Nothing of this machine; but a case that has to run before there is anything to predict is skipped."""
        if (claim.setup_calls or claim.setup_seconds) and not self.state.settings.dry_run:
            pytest.skip("trains or compiles before it measures, which cannot be predicted")
        return self

    def compare(self, base: Workload, candidate: Workload, budget_s: float | None, threshold: float | None) -> None:
        """Nothing: nothing runs."""

    def of(self, workload: Workload) -> Any:
        """Predict the callable, in what the run has left."""
        left_s = self.budget.left_s()
        if left_s is not None and left_s <= 0:
            self.state.skip_for_time()
        return self.predictions.of(self.state, workload, left_s)
