"""Re-measures a suspect in fresh processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perflab.base.data import changed
from perflab.base.errors import FreshProcessError
from perflab.judging.counts import FAILS_ALREADY, exactly_worse
from perflab.judging.interference import disturbances
from perflab.measure.machine.devices import available_bytes, release_memory
from perflab.measure.stopping import CALLS_AT_LEAST
from perflab.measured.run.verdict import Judged
from perflab.measurement.measurement import replicate_of
from perflab.results.measurement import Record, Replicate
from perflab.results.records import Judgement, Verdict
from perflab.running.case.fresh_process import measure_fresh
from perflab.running.case.progress import ProgressLine
from perflab.running.case.ranked import ranks_on_a_device
from perflab.settings.total_budget import TotalBudget
from perflab.units import format_bytes

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
        if left_s is not None and left_s < _least_s(one.record):
            return one.settings.over_before(_AGAIN)
        problem = no_room(one.record, device)
        if problem is None:
            budget_s = self._budget.share_s(among)
            try:
                cases = {one.case: one.settings.world_size}
                found = measure_fresh(self._config, cases, str(device), budget_s, left_s=left_s)[one.case]
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


def _least_s(record: Record) -> float:
    """Return the least time in seconds that a fresh process takes for a case."""
    return PROCESS_S + (CALLS_AT_LEAST * record.summary.median_ns / 1e9 if record.summary is not None else 0.0)


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
