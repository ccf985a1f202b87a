"""Re-checks after all tests: suspects in fresh processes, unsettled cases interleaved, largest first.

All suspects are re-measured in fresh processes before any unsettled case is interleaved with its baseline's commit,
which takes longer. In both steps, the largest change comes first: the rest of a run's time goes to the worst cases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from perflab.base.data import changed
from perflab.judging.counts import exactly_worse
from perflab.measured.run.device_turns import Take
from perflab.measured.run.evidence import Evidence
from perflab.measured.run.remeasure import Remeasuring
from perflab.measured.run.settle import Settling, may_settle
from perflab.measured.run.verdict import Judged
from perflab.results.records import Judgement, Verdict
from perflab.running.case.progress import ProgressLine
from perflab.settings.total_budget import TotalBudget
from perflab.turns.evidence import kept_s


def needs_recheck(one: Judged) -> bool:
    """Whether re-measuring the case may change its verdict."""
    if one.settings.check == "off" or one.settings.update:
        return False
    return one.judgement.suspect or may_settle(one)


def size_of(judgement: Judgement) -> tuple[bool, float]:
    """Return a key that sorts suspects and unsettled cases by size.

    Cases that fail even without a re-check come first: by memory or exact counts. The second key is the ratio of the
    latency, divided by its limit.
    """
    change = judgement.latency
    over = change.ratio / change.limit if change is not None and change.limit is not None else 0.0
    return bool(exactly_worse(judgement)), over


def without_recheck(one: Judged, reason: str) -> Judged:
    """Return a case that is not re-checked, judged by its first reading, with the reason if one is needed."""
    if one.judgement.suspect:
        return one.not_rechecked(reason)
    if one.judgement.verdict is not Verdict.INCONCLUSIVE:  # other verdicts need no reason
        return one
    return replace(one, judgement=changed(one.judgement, reasons=[*one.judgement.reasons, reason]))


class Recheck:
    """Re-checks cases; remembers which kinds of re-check were useless in this run."""

    def __init__(
        self, config: pytest.Config, baselines: Path, progress: ProgressLine, budget: TotalBudget, turn: Take
    ) -> None:
        self._remeasuring = Remeasuring(config, progress, budget)
        self._settling = Settling(config, baselines, progress, budget)
        self.evidence = Evidence(config, self._settling.code_of, progress, budget)
        self._progress = progress
        self._budget = budget
        self._turn = turn

    def at_once(self, one: Judged) -> Judged:
        """Re-check one case whose test holds the device."""
        if one.judgement.suspect:
            one = self._remeasuring.again(one, settles=self._settling.has_code(one))
        return self.evidence.of(self._settling.settle(one) if may_settle(one) else one)

    def after_all(
        self,
        cases: Sequence[Judged],
        done: Callable[[int, Judged], None],
        learned: Callable[[int, Judged], None],
    ) -> None:
        """Re-check all cases that were held back.

        Args:
            cases: the cases.
            done: receives each case with its index in ``cases``, as soon as nothing more is to be done for it.
            learned: receives a case with its index as soon as its verdict is known, if that is earlier.
        """

        def largest_first(chosen: dict[int, Judged]) -> Iterator[tuple[int, Judged]]:
            return iter(sorted(chosen.items(), key=lambda pair: size_of(pair[1].judgement), reverse=True))

        suspects = {place: one for place, one in enumerate(cases) if one.judgement.suspect}
        unsettled = {place: one for place, one in enumerate(cases) if not one.judgement.suspect and may_settle(one)}
        failing = {place: one for place, one in enumerate(cases) if place not in suspects and place not in unsettled}

        def known(place: int, one: Judged) -> None:
            if self.evidence.wanted(one):
                failing[place] = one  # explained when all verdicts are known
                learned(place, one)
            else:
                done(place, self._explained(one))

        waiting = len(suspects)
        for place, suspect in largest_first(suspects):
            self._budget.causes_s = kept_s(one.judgement for one in (*failing.values(), suspect))
            with self._looking_at(suspect):
                one = self._remeasuring.again(suspect, waiting, settles=self._settling.has_code(suspect))
            waiting -= 1
            if may_settle(one):
                unsettled[place] = one
            else:
                known(place, one)
        for place, doubt in largest_first(unsettled):
            self._budget.causes_s = kept_s(one.judgement for one in failing.values())
            with self._looking_at(doubt):
                one = self._settling.settle(doubt)
            known(place, one)
        for place, one in largest_first(failing):
            done(place, self._explained(one))

    def _explained(self, one: Judged) -> Judged:
        """Return the case, with an explanation of its difference from before if one is wanted."""
        if not self.evidence.wanted(one):
            return self.evidence.or_why_not(one)
        with self._looking_at(one):
            return self.evidence.of(one)

    @contextlib.contextmanager
    def _looking_at(self, one: Judged) -> Iterator[None]:
        assert one.state.device is not None
        self._progress.begin(one.case)
        try:
            with self._turn(one.state.device):
                yield
        finally:
            self._progress.clear()
