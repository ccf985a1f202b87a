"""Takes the replicates of a baseline, from this session and from fresh processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

import pytest

from perflab.base.errors import FreshProcessError
from perflab.judging.interference import disturbances
from perflab.judging.kept import Fitness, calmest, fitness
from perflab.measured.run.remeasure import FURTHER_PROCESSES, PROCESS_S
from perflab.measurement.measurement import replicate_of
from perflab.profiles.stored import packed
from perflab.profiles.take import LEAST_CALLS
from perflab.results.measurement import Record, Replicate
from perflab.results.profile import Profile
from perflab.results.records import Policy
from perflab.results.result import Result
from perflab.running.case.fresh_process import measure_fresh
from perflab.running.case.locks import device_turn
from perflab.running.case.progress import ProgressLine
from perflab.settings.total_budget import TotalBudget
from perflab.tiers.job import JobResult
from perflab.units import format_names


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
            try:
                with device_turn(device, ProgressLine(self._config).waiting):
                    world_sizes = {case: self._results[case].mode.world_size for case in here}
                    found = measure_fresh(self._config, world_sizes, device, budget_s, profiled=profiled)
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


def alone_notes(cases: Sequence[str]) -> list[str]:
    """Return lines on baselines that are a single process each. ``cases``: short names."""
    if not cases:
        return []
    return [
        f"saved from a single process: {format_names(cases)}: its noise is unknown, so no slowdown counts against it",
        "  -> save three or more: --perf-replicates=3",
    ]
