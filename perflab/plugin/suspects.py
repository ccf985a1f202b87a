"""Measuring a suspect again in fresh processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from perflab.errors import FreshProcessError
from perflab.gate.counts import exactly_worse
from perflab.gate.disturbance import disturbances
from perflab.gate.judge import judge
from perflab.measure.devices import available_bytes, release_memory
from perflab.measure.limits import CALLS_AT_LEAST
from perflab.measure.measurement import replicate_of
from perflab.plugin.case import CaseState
from perflab.plugin.fresh import measure_fresh
from perflab.plugin.progress import ProgressLine
from perflab.plugin.total_budget import TotalBudget
from perflab.records import Entry, Judgement, Record, Replicate, Verdict
from perflab.units import format_bytes

if TYPE_CHECKING:
    import torch

PROCESS_BYTES = 1 << 30
"""Room that a process needs beside the case's own tensors: an interpreter and PyTorch."""
FURTHER_PROCESSES = 3
"""How many more fresh processes a suspect may take in place of disturbed ones. Neighbours that stay longer, stay."""


class Suspects:
    """Looks at suspects again, one after another, and learns whether waiting for a calm moment is of use."""

    def __init__(self, config: pytest.Config, progress: ProgressLine, budget: TotalBudget) -> None:
        self._config = config
        self._progress = progress
        self._budget = budget
        self._neighbours_pass = True
        """Whether waiting for a calm moment was of use to the last suspect; if not, the next one does not wait."""

    def look_again(self, state: CaseState, record: Record, entry: Entry | None) -> tuple[Record, Judgement]:
        """Measure a suspect in fresh processes, and stop early at the first that clears it.

        One that was disturbed is taken again, so that a neighbour who passes by hides no slowdown.
        """
        judgement = judge(record, entry, state.settings.policy)
        before = entry.replicates if entry is not None else []
        wanted, slow = state.settings.replicates, 1.0 + state.settings.threshold
        most = wanted + (FURTHER_PROCESSES if self._neighbours_pass else 0)
        calm: list[Replicate] = []
        disturbed: list[Replicate] = []
        what = "looks worse"
        while len(calm) < wanted and len(calm) + len(disturbed) < most:
            number = len(calm) + len(disturbed) + 1
            self._progress.show(f"{what}; fresh process {number} of {wanted if number <= wanted else most}")
            found = self._measure_again(state, record)
            if isinstance(found, str):
                if len(calm) + len(disturbed) >= wanted:
                    break  # what there is will do
                # Memory and counts are exact: they need no second reading to be believed. Time does.
                exact = exactly_worse(judgement)
                return record, msgspec.structs.replace(
                    judgement,
                    verdict=Verdict.REGRESSED if exact else Verdict.INCONCLUSIVE,
                    worse=exact,
                    reasons=[*judgement.reasons, f"could not be measured again: {found}"],
                    suspect=False,
                    unsettled=[],
                )
            # What disturbs a process makes it slower: one that is not slow, or only hungrier, needs no excuse.
            is_slow = judgement.latency is not None and found.median_ns > slow * judgement.latency.before
            by = disturbances([found], before, record.environment) if is_slow else []
            (disturbed if by else calm).append(found)
            what = by[0] if by else "looks worse"
            found_all = calm + disturbed
            record = msgspec.structs.replace(record, fresh=found_all[:wanted], set_aside=found_all[wanted:])
            judgement = judge(record, entry, state.settings.policy)
            if cleared(judgement, state.settings.threshold):
                break
        if calm or disturbed:
            self._neighbours_pass = bool(calm)
        return record, judgement

    def _measure_again(self, state: CaseState, record: Record) -> Replicate | str:
        """A replicate from a fresh process, or why there is none."""
        assert state.device is not None
        release_memory(state.device)
        problem = no_room(record, state.device)
        left_s = self._budget.left_s()
        needed_s = CALLS_AT_LEAST * record.summary.median_ns / 1e9 if record.summary is not None else 0.0
        if left_s is not None and left_s < needed_s:
            problem = "not enough time is left of --perf-total-budget"
        if problem is not None:
            return problem
        try:
            found = measure_fresh(self._config, [state.case], str(state.device))[state.case]
        except FreshProcessError as error:
            return error.problem
        return replicate_of(found.measurement) if found.measurement is not None else "out of memory in a fresh process"


def cleared(judgement: Judgement, threshold: float) -> bool:
    """Whether no more fresh processes are needed: not worse, and not just below the threshold by one lucky process."""
    if judgement.verdict not in (Verdict.OK, Verdict.IMPROVED):
        return False
    changes = [judgement.latency, judgement.drift["latency"].change if "latency" in judgement.drift else None]
    return all(change is None or change.ratio <= 1.0 + threshold / 2 for change in changes)


def no_room(record: Record, device: torch.device, processes: int = 1) -> str | None:
    """Why so many more processes with the same tensors would not fit beside this one; None if they do."""
    memory = record.measurement.memory if record.measurement is not None else None
    free = available_bytes(device)
    if memory is None or free is None:
        return None
    needed = processes * (memory.peak_bytes + PROCESS_BYTES)
    return None if needed <= free else f"it needs {format_bytes(needed)}, and {format_bytes(free)} are free"
