"""Runs a case dry: counts memory, launches and waits of a call in its steady state, and traces the call."""

from __future__ import annotations

import gc
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from perflab.base.data import changed
from perflab.predicted.dry_run.races import finding_races
from perflab.predicted.dry_run.traffic import TrafficNotes, by_name, without_effect
from perflab.predicted.gpus import DataSheet
from perflab.predicted.prediction import Traced, Work, predict, watched
from perflab.predicted.trace.operators import Hidden
from perflab.predicted.trace.watch import Watch
from perflab.predicted.world.lone_rank import calls_until_steady
from perflab.results.predicted import DryRun, Prediction, Race

if TYPE_CHECKING:
    from nocuda import Library

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_TIMED = 3
_IN_A_LOOP = 2
"""The number of calls in which races are searched for: a call may race with the previous call."""
_UNEXPLAINED = 0.01
"""The largest share of allocated memory that no operator explains and that gets no note."""


def run_dry(work: Work, gpu: DataSheet, watch: Watch | None = None) -> tuple[Prediction, Traced]:
    """Run a call on CUDA with nothing computed: to its steady state, then to count, to time, to trace, to find races.

    Raises:
        Exception: whatever the work raises, out of memory too.
        CalledOff: the watch stopped the call.
    """
    from nocuda import Seen, library

    lib = library()
    for _ in range(calls_until_steady()):
        with watched(watch):
            work.call()  # libraries make their handles and workspaces, optimizers their state
        work.made_ready()
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    lib.reset()
    notes = TrafficNotes()
    with lib.observing(Seen.SYNCHRONISATION | Seen.COPY, notes.note):
        work.call()
    counts, stats = lib.counts(), torch.cuda.memory_stats()
    host_ns = min(_timed(work) for _ in range(_TIMED))
    now, traced = predict(work, gpu, RealKernels(lib), whole=True, watch=watch)
    allocated, said = stats["allocated_bytes.all.peak"], list(now.notes)
    unexplained = allocated - now.allocated_bytes
    if unexplained > _UNEXPLAINED * allocated:
        said.append(f"{unexplained:,} B of what is allocated follow from no operator: a library's own, or not let go")
    races: list[Race] = []
    with finding_races(races):
        for _ in range(_IN_A_LOOP):
            work.made_ready()
            work.call()
    unknown = without_effect(lib.counts().unknown)
    if unknown:
        said.append(f"did nothing here, so what depends on it is not in the numbers: {', '.join(unknown)}")
    seen = DryRun(
        asked_bytes=stats["requested_bytes.all.peak"],
        kernels=dict(by_name(counts).most_common()),
        replayed=counts.replayed,
        traffic=notes.traffic(),
        races=races,
        host_ns=float(host_ns),
        unknown=unknown,
    )
    now = changed(
        now,
        allocated_bytes=allocated,
        reserved_bytes=stats["reserved_bytes.all.peak"],
        launches=counts.launches,
        notes=said,
        dry_run=seen,
    )
    return now, traced


class RealKernels(Hidden):
    """The temporary memory and the launches of each operator, counted while the operator runs."""

    device_type = "cuda"

    def __init__(self, lib: Library) -> None:
        self._library = lib
        self._launched = 0

    def before(self) -> None:
        """Begin to count memory and launches, just before an operator runs."""
        torch.cuda.reset_peak_memory_stats()
        self._launched = self._library.launches

    def blocks_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        """Return the temporary memory of the call that has just been made, as one block, in bytes."""
        taken = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        return (taken,) if taken else ()

    def launches_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the number of kernels that the call has launched."""
        return self._library.launches - self._launched


def _timed(work: Work) -> int:
    """Return the host's time to issue a call, in ns; nothing waits for a GPU."""
    work.made_ready()
    start = perf_counter_ns()
    work.call()
    return perf_counter_ns() - start
