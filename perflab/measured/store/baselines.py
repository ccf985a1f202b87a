"""Stored numbers of measured cases: exact quantities for all machines, times by machine, and a machine's own history.

Committed times have precedence. A machine without committed times keeps the times of its runs in a separate folder,
which is not committed, so that a second run has something to compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from perflab.judging.local_history import Reading, Step, next_step, unexplained
from perflab.measured.store.exact import ExactStore, split
from perflab.results.environment import differences, exact_environment, whole_slug
from perflab.results.measured import Baseline, Entry, Exact
from perflab.results.records import Environment
from perflab.store.case_files import name_of
from perflab.store.times import BaselineStore

ExactSuccessor = Callable[[str, Exact | None, Exact], Exact]
TimesSuccessor = Callable[[str, Entry | None, Entry], Entry]


class Baselines:
    """Every place in which numbers of measured cases are stored. ``CaseFiles`` documents the errors.

    Args:
        directory: baselines that are committed.
        own: this machine's own history.
    """

    def __init__(self, directory: Path, own: Path) -> None:
        self.exact = ExactStore(directory)
        self.times = BaselineStore(directory)
        self._own = BaselineStore(own, whole_slug)

    def of(self, case: str, environment: Environment) -> Baseline:
        """Return the numbers that a case is compared with.

        If none are comparable, return the closest ones, so that the judge can say what differs.
        """
        committed = self.times.entries(case, environment)
        known = [*committed, *self._own.entries(case, environment)]
        times = min(known, key=lambda entry: len(differences(entry.environment, environment)), default=None)
        exact = self.exact.of(case, environment)
        return Baseline(exact=exact, times=times, times_are_own=times is not None and times not in committed)

    def has_exact(self, case: str, environment: Environment) -> bool:
        """Whether exact quantities of the case are stored for exactly this environment."""
        exact = self.exact.of(case, environment)
        return exact is not None and exact.environment == exact_environment(environment)

    def has_times(self, case: str, environment: Environment) -> bool:
        """Whether times of the case are committed for exactly this environment."""
        times = self.times.entries(case, environment)
        return bool(times) and not differences(times[0].environment, environment)

    def save(
        self,
        exacts: Mapping[str, Entry],
        times: Mapping[str, Entry],
        exact_successor: ExactSuccessor,
        times_successor: TimesSuccessor,
    ) -> list[Path]:
        """Store the exact quantities of ``exacts`` and the times of ``times``. Return the files written.

        Args:
            exacts: node id -> a measurement with all its replicates.
            times: node id -> a measurement with all its replicates; mostly the cases of ``exacts``.
            exact_successor: ``(case, old, new)`` returns the exact quantities to store if the file holds ``old``.
            times_successor: ``(case, old, new)`` returns the times to store if the file holds ``old``.
        """
        found = {case: exact for case, entry in exacts.items() if (exact := split(entry).exact) is not None}
        own = {case: one for case, entry in times.items() if (one := split(entry).times) is not None}
        paths = self.times.save(own, times_successor) if own else []
        self._forget(self._own, own)
        inexact = {case: entry for case, entry in exacts.items() if case not in found and _calls_differ(entry)}
        self._forget(self.exact, inexact)
        return [*paths, *(self.exact.save(found, exact_successor) if found else [])]

    def _forget(self, store: BaselineStore | ExactStore, cases: Mapping[str, Entry]) -> None:
        """Remove the cases from a store's files of their environments."""
        names: dict[Path, list[str]] = {}
        for case, entry in cases.items():
            path = store.path_for(case, entry.environment)
            if path.exists():
                names.setdefault(path, []).append(name_of(case))
        if names:
            store.remove(names)

    def keep(self, runs: Mapping[str, Reading]) -> dict[str, Step]:
        """Keep times of cases without committed times in this machine's own history. Return the step of each history.

        Args:
            runs: node id -> a run's measurement of a case without committed times.
        """
        steps: dict[str, Step] = {}

        def successor(case: str, old: Entry | None, new: Entry) -> Entry:
            steps[case] = next_step(old, new, runs[case].policy)
            return steps[case].entry

        entries = {case: one for case, reading in runs.items() if (one := split(reading.entry).times) is not None}
        joining = {case: one for case, one in entries.items() if not runs[case].is_worse}
        if joining:
            self._own.save(joining, successor)
        for case, new in entries.items():
            for old in self._own.entries(case, new.environment)[:1] if runs[case].is_worse else ():
                steps[case] = Step(old, left_out=unexplained(old, new))
        return steps


def _calls_differ(entry: Entry) -> bool:
    return any(one.memory is not None and one.memory.least for one in entry.replicates)
