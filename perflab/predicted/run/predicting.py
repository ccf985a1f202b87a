"""Predicts one case: traces its callable on fake tensors, judges it, fails its test.

This module predicts a case's callable and compares the prediction with the case's baseline. ``fake_cases.py`` decides
which tests run on fake tensors, and explains errors on fake tensors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from perflab.attribution.reachable import collector_off, reachable
from perflab.base.data import changed
from perflab.base.errors import BaselineError, InternalsError, UsageError
from perflab.measure.counts.collectives import WAITS
from perflab.measure.machine.devices import current_device
from perflab.predicted.gpus import Gpu, roofline_ns
from perflab.predicted.judge.explanation import explain_broken, unless_broken
from perflab.predicted.judge.judge import judge_predicted
from perflab.predicted.memory.sizes import Outline, outline_of
from perflab.predicted.run.exploring import WORLD, Explorer, fit_of, with_estimate, work_of, worlds_of
from perflab.predicted.settings import Predicting, predicts_by_itself
from perflab.predicted.store import PredictedStore
from perflab.predicted.trace.watch import CalledOff, Watch
from perflab.predicted.world.lone_rank import FAKE, LONE, OVER_NOCUDA, LoneRank, lone_rank, playing, with_mismatches
from perflab.predicted.world.network import communication_on, exchanged_by_line
from perflab.results.predicted import PredictedBaseline, PredictedCase, Prediction, place_of
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Result
from perflab.running.case.progress import ProgressLine
from perflab.running.case.verdicts import compared_with, failure_of, unless_beyond, unless_unchecked
from perflab.running.config.folder import file_name_for, own_place
from perflab.running.config.kinds import FAKING
from perflab.running.session.prune import Moved
from perflab.settings.settings import Settings
from perflab.store.times import BaselineStore
from perflab.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from perflab.measure.calls.workload import Workload
    from perflab.measure.memory.histories import MemorySnapshot
    from perflab.predicted.prediction import Proofs, Traced
    from perflab.predicted.trace.trace import Trace
    from perflab.running.case.perf import CaseState, Way
    from perflab.running.case.statements import Claim
    from perflab.settings.settings import TotalBudget

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


@dataclass
class Instead:
    """A case's state in the predicted tier, for a case that is predicted although no prediction was requested."""

    of: str | None = None
    """The reason for which the case would have been skipped; None if its prediction was requested."""
    until_judged: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Keeps the case's tensors fake until the case is judged: the prediction begins within the test's body."""
    traced: tuple[Outline, Watch] | None = None
    """The outline of the case's own call, once it is traced, and the time of tracing."""
    group: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Keeps this process one rank of the case's group until the case is torn down."""

    def skip(self, why: str) -> NoReturn:
        """Skip the case because it cannot be predicted; ``why`` is the reason."""
        pytest.skip(why if self.of is None else f"{self.of}; cannot be predicted, {why}")


class Predictions:
    """The state that all predictions of this process share: stores of baselines, GPU, fake mode, explored sizes."""

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
        """Read the baselines of these cases early, before an error would lose any work.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        self._store.check(self._place, cases)

    @contextlib.contextmanager
    def fake(self) -> Iterator[None]:
        """Make tensors fake within the block, and PyTorch act as on CUDA. A dry run is on CUDA, so nothing changes."""
        if self._settings.dry_run:
            yield
            return
        from perflab.predicted.cuda.as_cuda import as_cuda
        from perflab.predicted.cuda.fake import fake_tensors

        # Code finds an A100's compute capability for other makers' GPUs, as kernels there keep least.
        capability = divmod(self._gpu.architecture if isinstance(self._gpu, Gpu) else 80, 10)
        was_faking = self._config.stash.get(FAKING, None)
        # Tracing makes millions of short-lived objects, and each collection scans PyTorch's too.
        with fake_tensors(self._mode) as self._mode, as_cuda(capability), collector_off():
            self._config.stash[FAKING] = self
            try:
                yield
            finally:
                self._config.stash[FAKING] = was_faking

    @property
    def by_itself(self) -> bool:
        """Whether the run predicts a case that does not fit this machine, although no prediction was requested."""
        return predicts_by_itself(self._settings)

    def way(self, state: CaseState, budget: TotalBudget) -> Way:
        """Return the way that predicts a case's callable."""
        return Predicted(state, self, budget)

    def play_rank(self, item: pytest.Item, state: CaseState) -> None:
        """Make this process one rank of the group of a case in ranks, whose other ranks do not exist.

        Raises:
            UsageError: the case has no such rank.
        """
        size = state.settings.world_size
        if size == 1:
            return
        alone = item.stash.get(LONE, None) or LoneRank(self._settings.part(Predicting).ranks_of(size)[0], size)
        joined = playing(alone, OVER_NOCUDA if self._settings.dry_run else FAKE)
        state.part(Instead).group.enter_context(joined)

    def device(self) -> torch.device:
        """Return the device that stands for the GPU in user code."""
        import torch

        return torch.device("cuda", 0)

    @contextlib.contextmanager
    def record_memory(self, path: Path) -> Iterator[MemorySnapshot]:
        """Record the allocations and frees of a block of code; times in the file are predicted ones.

        Tensors from before the block are unknown to the recording, so freeing such a tensor does not lower the level
        below the one at the start. ``path`` is the path to write to, without the ending ``.pickle``.

        Raises:
            OSError: the file cannot be written.
        """
        from perflab.measure.memory.histories import MemorySnapshot
        from perflab.predicted.cuda.kernels import ON_CUDA
        from perflab.predicted.memory.snapshot import write_snapshot
        from perflab.predicted.trace.modules import ModuleBook
        from perflab.predicted.trace.tracer import Tracer

        snapshot = MemorySnapshot(path.with_name(path.name + ".pickle"))
        tracer = Tracer(ModuleBook(), (), (), ON_CUDA)
        with tracer.watching():
            yield snapshot
        trace = tracer.trace()
        snapshot.peak_bytes = outline_of(trace).peak_bytes()
        write_snapshot(trace, path, time_of=lambda op: roofline_ns(op, self._gpu) or 0.0)

    def from_here_on(self, state: CaseState, unmet: str, budget: TotalBudget) -> Way:
        """Predict a case that does not fit, from the point at which the case states its needs.

        Raises:
            BaselineError: the file of the case's baseline, which was not checked before, is damaged or foreign.
            pytest.skip.Exception: this version of PyTorch does not support predictions.
        """
        self.check([state.case])
        try:
            state.part(Instead).until_judged.enter_context(self.fake())
        except InternalsError as error:
            pytest.skip(f"{unmet}; cannot be predicted, {error.problem}")
        state.predicts, state.part(Instead).of = True, unmet
        return self.way(state, budget)

    def of(self, state: CaseState, workload: Workload, left_s: float | None) -> Any:
        """Predict a case's callable, and return a fake result of the callable's shape.

        Args:
            state: the case.
            workload: the work to predict.
            left_s: the seconds left of the run's total budget; None without such a budget.

        Raises:
            UsageError: the build function of ``perf.fits`` returned nothing to predict; or the callable calls no
                operator, but has a prediction stored.
            pytest.skip.Exception: the callable calls no operator; or tracing takes longer than the case's budget, or
                than the run has left.
        """
        gpu = self._gpu
        show, budget_s = functools.partial(self._progress.show, doing="predicting"), state.settings.budget_s
        by_marker = budget_s != self._settings.budget_s
        time = Watch(show, budget_s, by_marker=by_marker, left_s=left_s)
        try:
            now, traced = self._traced(state, workload, time)
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
            now = changed(now, snapshot=self._write_timeline(state.case, now, traced.trace).name)
        try:
            now = with_estimate(now, state.case, self._measured, self._store, gpu)
        except BaselineError as error:  # in a file of measured baselines, which this case does not need
            now = changed(now, notes=[*now.notes, f"no estimate: {error.problem}"])
        now = self._explored(now, traced.trace, state, time)
        self._progress.clear()
        before, _ = self._baseline(state.case)
        if traced.seen is not None:
            alone = lone_rank()
            assert alone is not None
            state.part(Instead).traced = outline_of(traced.trace), time
            counts = traced.seen.counts()
            if not self._settings.dry_run:  # on fake tensors FSDP2 waits otherwise than on a GPU
                counts.pop(WAITS, None)
            now = changed(
                now,
                world_size=alone.world_size,
                rank=alone.rank,
                collectives=counts,
                exchanged=exchanged_by_line(traced.seen.collectives),
                communication=communication_on(self._settings.part(Predicting).network, traced.seen.collectives, gpu),
            )
        state.done, state.outcome = True, PredictedCase(now=now, before=before, parameters=state.parameters)
        return traced.result

    def _traced(self, state: CaseState, workload: Workload, time: Watch) -> tuple[Prediction, Traced]:
        """Trace the workload, in a dry run on CUDA tensors and else on fake ones."""
        from perflab.predicted.cuda.kernels import ON_CUDA
        from perflab.predicted.prediction import Proofs, predict

        if self._settings.dry_run:
            from perflab.predicted.dry_run.case import run_dry

            assert state.device is not None
            with current_device(state.device):
                return run_dry(work_of(workload), self._gpu, time)
        self._proofs = self._proofs or Proofs()
        return predict(work_of(workload), self._gpu, ON_CUDA, proofs=self._proofs, watch=time)

    def _write_timeline(self, case: str, now: Prediction, trace: Trace) -> Path:
        """Write the memory timeline of a case's call as a snapshot, and return the file's path."""
        from perflab.predicted.memory.snapshot import write_snapshot

        folder = own_place(self._config.rootpath, "snapshots")
        return write_snapshot(
            trace,
            folder / f"{file_name_for(case)}-predicted",
            workspace_bytes=self._gpu.workspace_bytes if now.workspace_bytes else 0,
            time_of=lambda op: roofline_ns(op, self._gpu) or 0.0,
        )

    def _explored(self, now: Prediction, trace: Trace, state: CaseState, time: Watch) -> Prediction:
        """Return the prediction with what else fits.

        If building the case for other sizes fails or takes too long, a note says so, and the prediction stays complete
        otherwise.
        """
        gpu = self._gpu
        if self._settings.dry_run:  # a dry run would run each size
            return changed(now, fit=fit_of(now, gpu))
        fit = fit_of(now, gpu)
        with _building() as failed, time.part("other sizes"):
            fit = self._explorer.fit(now, trace, state, gpu, time)
        return changed(now, fit=fit, notes=[*now.notes, *(f"no larger sizes are known: {why}" for why in failed)])

    def _with_worlds(self, state: CaseState, outcome: PredictedCase) -> PredictedCase:
        """Return the case with the peak of a rank in other worlds, if it says how to build itself with more ranks.

        The case's body has ended: its group is left for them, and joined anew.
        """
        gpu, alone, exploration, now = self._gpu, lone_rank(), state.exploration, outcome.now
        if alone is None or exploration is None or WORLD not in exploration.sizes or now.fit is None:
            return outcome
        if self._settings.dry_run or not isinstance(gpu, Gpu):
            return outcome
        group, traced, worlds = state.part(Instead).group, state.part(Instead).traced, dict[int, int]()
        assert traced is not None
        outline, time = traced
        group.close()
        try:
            with _building() as failed, time.part("other worlds"), self.fake():
                worlds = worlds_of(outline, state, gpu, alone, time)
        finally:
            self._progress.clear()
            group.enter_context(playing(LoneRank(alone.rank, alone.world_size), FAKE))
        notes = [*now.notes, *(f"no other worlds are known: {why}" for why in failed)]
        return changed(outcome, now=changed(now, fit=changed(now.fit, worlds=worlds), notes=notes))

    def _baseline(self, case: str) -> tuple[PredictedBaseline | None, str | None]:
        """Return the case's baseline, and the case's old name if the baseline is stored under that name, else None."""
        before = self._store.baseline(self._place, case)
        was = self._moved.of(case) if before is None else None
        there = self._store.baseline(self._place, was) if was is not None else None
        return (before, None) if there is None else (there, was)

    def out_of_memory(self, state: CaseState, error: Exception) -> NoReturn:
        """End a dry run that exceeds the GPU's memory: fail a case with a baseline (if checks are on), else skip."""
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
        """Return the result of a predicted case, judged against the case's baseline."""
        assert isinstance(state.outcome, PredictedCase)
        state.outcome = self._with_worlds(state, with_mismatches(state.outcome))
        policy = state.settings.policy
        judgement = judge_predicted(state.outcome.now, state.outcome.before, policy)
        judgement = compared_with(judgement, self._baseline(state.case)[1])
        judgement = unless_beyond(judgement, state.settings, state.outcome.now.peak_bytes)
        judgement = unless_broken(judgement, state.outcome.now)
        judgement = unless_unchecked(judgement, state.settings)
        return Result(case=state.case, judgement=judgement, outcome=state.outcome, policy=policy)

    def fail_if_worse(self, result: Result, settings: Settings) -> None:
        """Fail the test of a case that grew, or whose streams race or whose ranks do not match in a dry run."""
        dry_run = result.outcome.now.dry_run if isinstance(result.outcome, PredictedCase) else None
        if result.judgement.verdict is Verdict.FAILED and dry_run is not None and (dry_run.races or dry_run.mismatches):
            pytest.fail(explain_broken(result.case, dry_run), pytrace=False)
        failure = failure_of(self._config, result, settings)
        if failure is not None:
            pytest.fail(failure, pytrace=False)


@contextlib.contextmanager
def _building() -> Iterator[list[str]]:
    """Yield a list that gets the reason if ``build`` of ``perf.fits`` raises within the block, or takes too long.

    The prediction stays complete otherwise. Errors of the project's set-up are raised.
    """
    failed: list[str] = []
    try:
        yield failed
    except (InternalsError, UsageError):
        raise
    except CalledOff as end:
        failed.append(f"tracing them {end}")
    except Exception as error:
        said = " ".join(str(error).split("\n")[0].split())
        failed.append(f"build of perf.fits() raised {type(error).__name__}: {said}".removesuffix(": "))


def without_fake_gradients(roots: tuple[Any, ...]) -> None:
    """Remove fake gradients from real parameters: other tests may train a session-scoped model further."""
    import torch

    from perflab.internals.of_torch.tracing import is_fake

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
        """Accept any claim, since a prediction needs nothing of this machine.

        Skip a case that has to run before there is anything to predict, except in a dry run.
        """
        if (claim.setup_calls or claim.setup_seconds) and not self.state.settings.dry_run:
            pytest.skip("trains or compiles before it measures, which cannot be predicted")
        return self

    def compare(self, base: Workload, candidate: Workload, budget_s: float, threshold: float) -> None:
        """Do nothing, since a prediction runs neither workload."""

    def of(self, workload: Workload) -> Any:
        """Predict the callable in the time that the run has left; skip the case if no time is left."""
        left_s = self.budget.left_s()
        if left_s is not None and left_s <= 0:
            self.state.skip_for_time()
        return self.predictions.of(self.state, workload, left_s)
