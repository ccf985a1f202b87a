"""Takes the replicates of a baseline, from this session and fresh processes, and re-measures a suspect in these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import pytest

from perflab.base.data import changed
from perflab.base.errors import FreshProcessError
from perflab.judging.counts import FAILS_ALREADY, exactly_worse
from perflab.judging.doubts import disturbances
from perflab.judging.kept import Fitness, calmest, fitness
from perflab.measure.machine.devices import available_bytes, release_memory
from perflab.measure.stopping import CALLS_AT_LEAST
from perflab.measured.baselines import packed
from perflab.measured.run.verdict import Judged
from perflab.measurement.measurement import replicate_of
from perflab.profiles.take import LEAST_CALLS
from perflab.results.measurement import Record, Replicate
from perflab.results.profile import Profile
from perflab.results.records import Judgement, Policy, Verdict
from perflab.results.result import Result
from perflab.running.case.fresh_process import measure_fresh
from perflab.running.case.locks import device_turn
from perflab.running.case.progress import ProgressLine
from perflab.running.case.ranked import ranks_on_a_device
from perflab.settings.settings import TotalBudget
from perflab.tiers.job import Job, JobResult
from perflab.units import format_bytes, format_names

if TYPE_CHECKING:
    import torch


PROCESS_BYTES = 1 << 30
"""Bytes that a process needs in addition to the case's own tensors: an interpreter and PyTorch."""
PROCESS_S = 3.0
"""Seconds that a process takes before it measures: starting Python, importing PyTorch, collecting its test."""
IMPROVEMENT_FACTOR = 3
"""Factor on the number of fresh processes that must agree on an improvement which no interleaved run settles. If code
runs at one of two speeds, fixed for each process, all three processes of a baseline are slow and all ten later ones
fast in less than one of a thousand cases, for any share p of slow processes: p³(1 - p)¹⁰ is 0.0009 at most."""
_AGAIN = "it could be measured again"
FURTHER_PROCESSES = 3
"""Number of additional fresh processes to replace disturbed ones of a suspect. Longer disturbances do not pass."""


class Remeasuring:
    """Re-measures suspects one after another, and remembers whether waiting for a calm moment helped."""

    def __init__(self, config: pytest.Config, progress: ProgressLine, budget: TotalBudget) -> None:
        self._config = config
        self._progress = progress
        self._budget = budget
        self._neighbours_pass = True
        """Whether the last suspect got an undisturbed process; if not, the next one does not wait for a calm moment."""

    def again(self, one: Judged, among: int = 1, *, settles: bool = False) -> Judged:
        """Re-measure a suspect in fresh processes until it is cleared, fails by an exact quantity, or has enough.

        A disturbed process is replaced by another one, so that a short disturbance hides no slowdown.

        Args:
            one: a case whose judgement is suspect.
            among: number of suspects, this one included, that share the rest of the run's time.
            settles: whether an improvement is interleaved with its baseline's commit afterwards.
        """
        settings = one.settings
        if exactly_worse(one.judgement) == ["counts"]:
            return one.not_rechecked(FAILS_ALREADY)
        before = one.baseline.times.replicates if one.baseline.times is not None else []
        # An exact quantity needs no interval: one fresh process shows whether this process's history was the cause.
        wanted = processes_wanted(one.judgement, settings.replicates, settles=settles)
        slow = 1.0 + settings.threshold
        most = wanted + (FURTHER_PROCESSES if self._neighbours_pass else 0)
        calm: list[Replicate] = []
        disturbed: list[Replicate] = []
        what = looks = "looks faster" if looks_faster(one.judgement) else "looks worse"
        while len(calm) < wanted and len(calm) + len(disturbed) < most:
            number = len(calm) + len(disturbed) + 1
            self._progress.show(f"{what}; fresh process {number} of {wanted if number <= wanted else most}")
            found = self._measure_again(one, among * wanted - number + 1)
            if isinstance(found, str):
                if len(calm) + len(disturbed) >= wanted:
                    break  # the processes so far are enough
                return one.not_rechecked(found)
            # A disturbance makes a process slower: one that is not slow needs no excuse.
            latency = one.judgement.latency
            is_slow = latency is not None and found.median_ns > slow * latency.before
            by = disturbances([found], before, one.record.environment) if is_slow else []
            (disturbed if by else calm).append(found)
            what = by[0] if by else looks
            found_all = calm + disturbed
            one = one.anew(changed(one.record, fresh=found_all[:wanted], set_aside=found_all[wanted:]))
            fails = exactly_worse(one.judgement)
            if fails and fails != one.judgement.worse and len(found_all) < wanted:
                one = one.not_rechecked(FAILS_ALREADY)
            if fails or cleared(one.judgement, settings.threshold):
                break
        if calm or disturbed:
            self._neighbours_pass = bool(calm)
        return one

    def _measure_again(self, one: Judged, among: int) -> Replicate | str:
        """Return a replicate from a fresh process, or the reason why there is none."""
        device, left_s = one.device, self._budget.measuring_s()
        release_memory(device)
        call_ns = one.record.summary.median_ns if one.record.summary is not None else 0.0
        if left_s is not None and left_s < PROCESS_S + CALLS_AT_LEAST * call_ns / 1e9:
            return one.settings.over_before(_AGAIN)
        problem = no_room(one.record, device)
        if problem is None:
            job = Job(cases=[one.case], budget_s=self._budget.share_s(among))
            sizes = {one.case: one.settings.world_size}
            try:
                found = measure_fresh(self._config, job, str(device), world_sizes=sizes, left_s=left_s)[one.case]
            except FreshProcessError as error:
                if left_s is not None and (self._budget.measuring_s() or 0.0) <= 0.0:
                    return one.settings.over_before(_AGAIN)
                problem = error.problem
            else:
                problem = "out of memory in a fresh process"
                if found.measurement is not None:
                    problem = found.measurement.not_counted
                    if problem is None or "counts" not in one.judgement.worse:
                        return replicate_of(found.measurement)
        return f"could not be measured again: {problem}"


def processes_wanted(judgement: Judgement, replicates: int, *, settles: bool) -> int:
    """Return the number of fresh processes that must agree on a suspect."""
    if looks_faster(judgement):
        return replicates if settles else IMPROVEMENT_FACTOR * replicates
    return replicates if "latency" in judgement.worse else 1


def cleared(judgement: Judgement, threshold: float) -> bool:
    """Whether no more fresh processes are needed.

    The case must not be worse, not be faster (one process may be fast by luck), and not be past half of the threshold.
    """
    if judgement.verdict not in (Verdict.OK, Verdict.IMPROVED) or looks_faster(judgement):
        return False
    changes = [judgement.latency, judgement.drift["latency"].change if "latency" in judgement.drift else None]
    return all(change is None or change.ratio <= 1.0 + threshold / 2 for change in changes)


def looks_faster(judgement: Judgement) -> bool:
    """Whether the case's verdict is ``improved``, and its time is a reason for that."""
    change = judgement.latency
    return judgement.verdict is Verdict.IMPROVED and change is not None and change.is_faster


def no_room(record: Record, device: torch.device, processes: int = 1) -> str | None:
    """Return why ``processes`` more processes with the same tensors do not fit beside this one; None if they do.

    Of a case in ranks each of them is as many processes as ranks share the device.
    """
    memory = record.measurement.memory if record.measurement is not None else None
    free = available_bytes(device)
    if memory is None or free is None:
        return None
    needed = processes * ranks_on_a_device(record.num_ranks, device) * (memory.peak_bytes + PROCESS_BYTES)
    return None if needed <= free else f"it needs {format_bytes(needed)}, but {format_bytes(free)} are free"


class Replicates:
    """Takes the replicates of the cases that are to be saved.

    Args:
        config: the session's configuration.
        chosen: the results of these cases.
        wanted: number of processes that measure a case.
        budget: the run's time; only the processes that replace noisy ones are limited by it.
        notes: receives notes on what went wrong.
        profile_ns: the most time for a case's profile, the evidence for a later failure; 0 takes no profile.
    """

    def __init__(
        self,
        config: pytest.Config,
        chosen: Iterable[Result],
        wanted: int,
        budget: TotalBudget,
        notes: list[str],
        profile_ns: float = 0.0,
    ) -> None:
        self._config = config
        self._wanted = wanted
        self._budget = budget
        self._notes = notes
        self._results: dict[str, Result] = {}
        self._records: dict[str, Record] = {}
        self._taken: dict[str, list[Replicate]] = {}
        self._profiles: dict[str, Profile] = {}
        self._took_s: dict[str, float] = {}
        """Case -> its share, in seconds, of the last fresh process's time; only if the run's time is limited."""
        self._given_up: set[str] = set()
        """Cases of a device whose last process failed: the next one would fail too."""
        self._to_profile: list[str] = []
        """Cases whose next replicate is also profiled."""
        for result in chosen:
            if result.record is not None and result.record.summary is not None:
                self._results[result.case], self._records[result.case] = result, result.record
                self._taken[result.case] = [result.record.summary]
                profile = result.record.measurement.profile if result.record.measurement is not None else None
                if profile is not None:
                    self._profiles[result.case] = profile
                elif result.mode.is_plain and LEAST_CALLS * result.record.summary.median_ns <= profile_ns:
                    self._to_profile.append(result.case)

    @property
    def least(self) -> int:
        """The number of replicates of the case that has the fewest."""
        return min(map(len, self._taken.values()), default=0)

    def kept(self, case: str) -> list[Replicate]:
        """Return the replicates for the case's baseline; empty for a case without numbers."""
        if case not in self._taken:
            return []
        return calmest(self._taken[case], self._wanted, self._records[case].environment)

    def profile(self, case: str) -> str | None:
        """Return the case's profile in the packed format of baselines; None if it has none."""
        return packed(self._profiles[case]) if case in self._profiles else None

    def fitness(self) -> dict[str, Fitness]:
        """Return the fitness of the kept replicates, by case."""
        return {
            case: fitness(self.kept(case), record.environment, self._results[case].policy or Policy())
            for case, record in self._records.items()
        }

    def typical(self, cases: Collection[str]) -> Fitness:
        """Return one fitness for several cases: disturbances of most replicates, and the median detectable slowdown.

        If these cases are calm together, the fitness of the first case is returned.
        """
        found = [fit for case, fit in self.fitness().items() if case in cases]
        pooled = [one for case in cases for one in self.kept(case)]
        disturbed = disturbances(pooled, [], self._records[next(iter(cases))].environment)
        blind = [one.sees for one in found if one.is_blind]
        typical = Fitness(disturbed, median(blind or [0.0]), is_blind=bool(blind))
        return found[0] if typical.is_calm else typical

    def take(self) -> None:
        """Measure in fresh processes, and in further ones while the replicates of cases are noisy."""
        for number in range(2, self._wanted + 1):
            self._measure(list(self._records), f"replicate {number} of {self._wanted}")
        for _ in range(FURTHER_PROCESSES if self._wanted > 1 else 0):
            fit = self.fitness()
            restless = [case for case, found in fit.items() if not found.is_calm and case not in self._given_up]
            left_s = self._budget.left_s()
            needed_s = sum(self._took_s.get(case, PROCESS_S) for case in restless)
            if not restless or (left_s is not None and left_s < needed_s):
                return
            share_s = self._budget.share_s(len(restless))
            self._measure(restless, "one more replicate to replace noisy ones", share_s)

    def _measure(self, wanted: Iterable[str], what: str, budget_s: float | None = None) -> None:
        """Take one more replicate of each case, within ``budget_s`` seconds.

        Cases of a device whose processes failed are left out.
        """
        cases = [case for case in wanted if case not in self._given_up]
        if not cases:
            return
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            if reporter._tw.width_of_current_line:
                reporter._tw.line()
            reporter.write_line(f"perf: {what} ({len(cases)} case{'s' * (len(cases) != 1)})")
        left_s = self._budget.left_s()
        missing: list[str] = []
        for device in sorted({self._records[case].device for case in cases}):
            here = [case for case in cases if self._records[case].device == device]
            profiled = [case for case in here if case in self._to_profile]
            job = Job(cases=here, budget_s=budget_s, profiled=profiled)
            sizes = {case: self._results[case].mode.world_size for case in here}
            try:
                with device_turn(device, ProgressLine(self._config).waiting):
                    found = measure_fresh(self._config, job, device, world_sizes=sizes)
            except FreshProcessError as error:
                self._notes.append(f"baselines with fewer replicates: {error}")
                self._given_up |= {*here}
                continue
            self._take(found)
            missing += [case for case in here if case not in found]
        if left_s is not None:
            self._took_s |= dict.fromkeys(cases, (left_s - (self._budget.left_s() or 0.0)) / len(cases))
        self._to_profile = []
        if missing:
            self._notes.append(f"a fresh process did not measure {', '.join(missing)}")

    def _take(self, found: Mapping[str, JobResult]) -> None:
        """Keep the measurements of a fresh process, whether or not later processes fail."""
        for case, result in found.items():
            if result.measurement is not None:
                self._taken[case].append(replicate_of(result.measurement))
                if result.measurement.profile is not None:
                    self._profiles[case] = result.measurement.profile


REFUSED = (
    "  -> save again on a quieter machine, or with fewer threads (perflab doctor);\n"
    "     to save them anyway: --perf-update --perf-noisy=accept\n"
    "     (times saved before stay; without any, these are kept in .perflab/times/ for this machine)"
)


def noisy_note(what: str, cases: Sequence[str], many: int, typical: Fitness) -> str:
    """Return one line on the noisy times of ``cases`` (short names) among ``many`` cases."""
    which = cases[0] if len(cases) == 1 else f"{len(cases)} of {many} cases ({format_names(cases, 3)}), typically"
    return f"{what}: {which}: {'; '.join(typical.marks) or 'no slowdown would count against them'}"
