"""One measurement: warm up, sample, count, take memory."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from perflab.base.data import changed
from perflab.base.identity import DEFAULT, Mode
from perflab.devices.backend import Quantity
from perflab.devices.kinds import backend_of
from perflab.internals.of_torch.originals import check_originals, modes_on
from perflab.judging.statistics import relative_half_width
from perflab.measure.calls import nvtx
from perflab.measure.calls.outputs import Comparing
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks import clock
from perflab.measure.clocks.calibration import CalibrationWorkload
from perflab.measure.clocks.clock import HostStopwatch, Sample, Stopwatch
from perflab.measure.clocks.device_clock import (
    EVENT_STEP_NS,
    DeviceStopwatch,
    check_agreement,
    wait_of_the_host,
)
from perflab.measure.clocks.modes import ColdDeviceStopwatch, ColdHostStopwatch, GraphStopwatch
from perflab.measure.counts.counter import CallCounter
from perflab.measure.generation import generation_of
from perflab.measure.machine.devices import Eviction, current_device, keep_freed_memory
from perflab.measure.machine.evidence import Witness
from perflab.measure.memory.alike import Watched
from perflab.measure.memory.peak import MEMORY_CALLS
from perflab.measure.stopping import SAMPLE_TARGET_NS, Plan, Progress, collect, is_cut_short, warm_up
from perflab.measurement.passes import find_leak, tried, weigh
from perflab.measurement.ranks import Agreed, of_all_ranks, slowest
from perflab.ranks.group import together
from perflab.results.measurement import Measurement, Replicate, Results, per_call_ns, summarize

if TYPE_CHECKING:
    import torch

    from perflab.profiles.take import ProfilePlan
    from perflab.results.profile import Profile

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

NO_WORK = 1.25
"""A callable no slower than this many empty calls does nothing that could be measured."""
LOOKS_LIKE_NONE = 4.0
"""A callable slower than this many empty calls cannot be empty, however fast the core was before."""
_TURNS = 5
_FROZEN_BY_PYTHON = 1000
"""Number of frozen objects up to which only Python itself has frozen any: 3.12 starts with 375, 3.11 and 3.13 with
none; PyTorch brings some hundred thousand objects."""


@dataclass(frozen=True)
class Measured:
    """A measurement, and what the measured callable returned in its last call."""

    measurement: Measurement
    result: Any


def stopwatch_for(device: torch.device, mode: Mode = DEFAULT) -> Stopwatch:
    """Return the stopwatch for a device: its own events on an accelerator that has true ones, else the host's clock.

    Calls begin and follow each other as ``mode`` says. The caller must ask for a CUDA graph on CUDA alone.

    Raises:
        ClockError: neither the device's events nor the host's clock can time its work.
    """
    eviction = Eviction(device) if mode.cache == "cold" else None
    backend = backend_of(device)
    wait = wait_of_the_host(backend)
    if backend.is_host or wait is not None:
        return HostStopwatch(wait) if eviction is None else ColdHostStopwatch(eviction, wait)
    cold = ColdDeviceStopwatch(device, eviction) if eviction is not None else None
    if mode.cuda_graph:
        return GraphStopwatch(device, cold)
    return cold or DeviceStopwatch(device)


def measure(
    workload: Workload,
    device: torch.device,
    plan: Plan,
    progress: Progress,
    label: str,
    counter: CallCounter | None = None,
    mode: Mode = DEFAULT,
    profile: ProfilePlan | None = None,
    leak_calls: int = 0,
) -> Measured:
    """Measure ``workload`` on ``device``; the caller must have collected the garbage of earlier work.

    Args:
        workload: the workload that is called, again and again.
        device: the device of the work; an accelerator is made the current one meanwhile.
        plan: budget, for warm-up, samples and memory together, and warm-up.
        progress: called between samples with a description of what is under way.
        label: name of the NVTX ranges around the passes.
        counter: counts what a call does, after the samples; None: nothing is counted.
        mode: how calls are timed. Memory, counts and profile are those of a plain call in every mode.
        profile: how a call is profiled, after all else; None: no profile is taken.
        leak_calls: number of further calls, at the end, that show whether memory piles up; 0: no check.

    Raises:
        CaptureError: no CUDA graph can hold the workload, and ``mode`` asks for one.
        ClockError: the device's events disagree with the host's clock.
        Exception: whatever the workload raises, out of memory included.
    """
    workload = (
        nvtx.RangedWorkload(workload) if nvtx.ranges_asked() and backend_of(device).tells(Quantity.RANGES) else workload
    )
    timing, modes = _Timing(workload, device, plan, mode, progress), modes_on()
    with current_device(device), collector_at_ease():
        with nvtx.nvtx_range(f"{label}: {nvtx.WARM_UP}", device):
            timing.warm_up()
        with nvtx.nvtx_range(f"{label}: {nvtx.SAMPLES}", device):
            timing.take_samples(MEMORY_CALLS + (counter.extra_calls if counter is not None else 0))
        check_originals(device, modes)
        empty_call_ns = timing.stopwatch.empty_call_ns()
        timing.stopwatch.release()  # the eviction buffer and graphs are not part of the case's memory
        progress("memory")
        with nvtx.nvtx_range(f"{label}: {nvtx.MEMORY}", device):
            weight = weigh(timing.watched, device, counter)
            generation = generation_of(timing.samples, weight.by_phase, workload.outputs())
        results = timing.compared(weight.result)
        profiled, problem = try_profile(workload, device, profile, progress) if profile is not None else (None, None)
        if isinstance(workload, nvtx.RangedWorkload):
            from perflab.profiles.recording import run_with_operator_ranges

            progress(nvtx.OPERATORS)
            with nvtx.nvtx_range(f"{label}: {nvtx.OPERATORS}", device):
                run_with_operator_ranges(workload, device, nvtx.OPERATOR_CALLS)
    leak, unknown = None, None
    if leak_calls:  # after the block above, in which frozen objects are hidden from the check
        progress("leaks")
        with current_device(device):
            leak, unknown = tried(lambda: find_leak(workload, device, leak_calls))
    measurement = changed(
        timing.measurement(),
        memory=weight.memory,
        counts=weight.counts,
        launch_ns=weight.launch_ns if mode == DEFAULT else None,
        leak=leak,
        off=weight.off if unknown is None else {**weight.off, "memory kept by calls": unknown},
        empty_call_ns=empty_call_ns,
        profile=profiled,
        not_profiled=problem,
        generation=generation,
        results=results,
    )
    return Measured(of_all_ranks(timing.own_ns, timing.in_step, measurement), weight.result)


class _Timing:
    """The warm-up and the timed samples of a workload, in step with other ranks, and what is noted beside them."""

    def __init__(self, workload: Workload, device: torch.device, plan: Plan, mode: Mode, progress: Progress) -> None:
        self._workload, self._progress = workload, progress
        self.in_step = together()
        self._agreed = Agreed(workload, plan, self.in_step)
        self._plan = self._agreed.plan
        self.watched = Watched(workload, device)
        self.stopwatch = stopwatch_for(device, mode)
        self._calibration = CalibrationWorkload(device)
        self._witness = Witness(device, self.in_step)
        # Replays of a graph return nothing.
        self._comparing = Comparing(workload) if self.in_step.world_size == 1 and not mode.cuda_graph else None
        self._is_cold_start = self._plan.warmup == 0 or mode.cuda_graph  # the first call is timed, or captured
        self._is_warm = False
        self._cpu_ns: list[int] = []
        self._own_ns: list[int] = []
        self.samples: list[Sample] = []
        keep_freed_memory()
        self._began_ns = self._agreed.read_ns()

    @property
    def own_ns(self) -> list[int]:
        """The durations of the samples in this rank, in nanoseconds."""
        return self._own_ns[-len(self.samples) :]

    def warm_up(self) -> None:
        """Call the workload until readings agree, or as often as the plan says."""
        self._warmup = warm_up(self._time, self._plan, self._progress, self._agreed.most_calls, self._agreed.read_ns)
        self.watched.look_early(self._warmup.calls)

    def take_samples(self, later_calls: int) -> None:
        """Take the samples in the time that the budget leaves beside ``later_calls`` calls of other passes.

        Raises:
            ClockError: the device's events disagree with the host's clock.
        """
        readings_ns = self._warmup.readings_ns
        call_ns = readings_ns[-1] if readings_ns else 0
        spent_ns = self._agreed.read_ns() - self._began_ns
        left_ns = max(0.0, self._plan.budget_ns - spent_ns - later_calls * call_ns)
        end_of_samples = self._witness.begin()
        self._is_warm = True
        began_ns = self._agreed.read_ns()
        self.samples = collect(
            self._time,
            self._warmup.repetitions,
            self._plan,
            left_ns,
            self._progress,
            self._calibration.read,
            self._agreed.read_ns,
        )
        lasted_ns = self._agreed.read_ns() - began_ns
        self._cut_short = is_cut_short(self.samples, self._plan, left_ns, lasted_ns)
        self._evidence = end_of_samples()
        check_agreement([sample.reading for sample in self.samples])

    def compared(self, result: Any) -> Results | None:
        """Return how timed calls compare with the untimed one that returned ``result``; None if that is unknown.

        Raises:
            ResultsError: timed calls returned something else.
        """
        if self._comparing is None:
            return None
        results, error = self._comparing.concluded(self._comparing.left(result), self._time_again)
        if error is not None:
            raise error
        return results

    def measurement(self) -> Measurement:
        """Return the measurement of the times."""
        samples = self.samples
        wall_ns = sum(one.lasted_ns if one.cpu_ns is None else one.total_ns for one in samples)
        cpu_ns = sum(self._cpu_ns[-len(samples) :])
        return Measurement(
            samples_ns=[sample.total_ns for sample in samples],
            repetitions=self._warmup.repetitions,
            warmup_calls=self._warmup.calls,
            settled=self._warmup.settled,
            clock=self.stopwatch.name,
            phases_ns={name: [sample.phases_ns[name] for sample in samples] for name in self._workload.phases},
            calibration_ns=self._calibration.results_ns(),
            cores_busy=round(cpu_ns / wall_ns, 2) if wall_ns > 0 else None,
            evidence=self._evidence,
            evicted_bytes=self.stopwatch.evicted_bytes,
            cut_short=self._cut_short,
        )

    def _time(self, repetitions: int) -> Sample:
        workload, comparing = self._workload, self._comparing
        set_up_ns = workload.make_ready(repetitions)
        self.in_step.wait()
        timed = workload if self._cpu_ns or self._is_cold_start else self.watched
        if comparing is not None:
            timed = comparing.wrapped(timed, repetitions, warm=self._is_warm)
        before_ns = time.process_time_ns()
        sample = self.stopwatch.time(timed, repetitions)
        used_ns = time.process_time_ns() - before_ns
        self._cpu_ns.append(used_ns if sample.cpu_ns is None else sample.cpu_ns)
        self._own_ns.append(sample.total_ns)
        if comparing is not None:
            comparing.note(timed, warm=self._is_warm)
        return slowest(replace(sample, set_up_ns=set_up_ns, outputs=workload.outputs()), self.in_step)

    def _time_again(self) -> None:
        """Take a sample that counts for nothing but its results."""
        self._time(self._warmup.repetitions)
        for of_samples in (self._own_ns, self._cpu_ns):
            of_samples.pop()


def try_profile(
    workload: Workload, device: torch.device, plan: ProfilePlan, progress: Progress
) -> tuple[Profile | None, str | None]:
    """Return the profile of a warm workload, or the reason why there is none, so that the measurement is not lost."""
    from perflab.profiles.take import take_profile

    if (why := backend_of(device).MISSING.get(Quantity.PROFILE)) is not None:
        return None, why
    return tried(lambda: take_profile(workload, device, stopwatch_for(device), plan, progress))


def replicate_of(measurement: Measurement) -> Replicate:
    """Summarise a measurement as a replicate, with the noise that the measurement shows by itself.

    Samples may be shorter than their target, if calls have cold caches or if there is no room for the arguments of more
    calls. The clock's resolution then counts as noise.
    """
    noise = relative_half_width(per_call_ns(measurement.samples_ns, measurement.repetitions))
    sample_ns = median(measurement.samples_ns)
    if 0 < sample_ns < SAMPLE_TARGET_NS:
        noise += (clock.step_ns() if measurement.clock == HostStopwatch.name else EVENT_STEP_NS) / sample_ns
    return summarize(measurement, noise)


def is_as_fast_as_none(workload: Workload, call_ns: float, repetitions: int, device: torch.device) -> bool:
    """Whether a call takes no longer than an empty call.

    A call that may be empty is timed in turns with an empty one, since cores change their speed.

    Args:
        workload: the workload that was measured.
        call_ns: the time of one of its calls.
        repetitions: calls in a sample; a call that fills a sample by itself is too long for an empty one.
        device: the device of the work.
    """
    if repetitions == 1:
        return False
    stopwatch, empty, in_step = stopwatch_for(device), workload.without_work(), together()

    def time_of(one: Workload) -> float:
        one.make_ready(repetitions)
        return in_step.most(stopwatch.time(one, repetitions).total_ns)[0]

    if call_ns > LOOKS_LIKE_NONE * time_of(empty) / repetitions:
        return False
    turns = [(time_of(empty), time_of(workload)) for _ in range(_TURNS)]
    return min(work for _, work in turns) <= NO_WORK * min(nothing for nothing, _ in turns)


class collector_at_ease:  # noqa: N801 - used like a function
    """Leave the garbage collector on, but freeze the objects that exist, so that it passes over new ones alone.

    Full passes over everything that a PyTorch process holds take a tenth of a second and would fall into samples at
    random; garbage that the workload itself makes is still collected, as in real use. Garbage that exists already
    would be frozen too: collect it before (``release_memory``). A program that has frozen objects itself is left as it
    is: its frozen objects cannot be told apart from ours afterwards.
    """

    def __enter__(self) -> None:
        self._is_ours = gc.get_freeze_count() <= _FROZEN_BY_PYTHON
        if self._is_ours:
            gc.freeze()

    def __exit__(self, *_error: object) -> None:
        if self._is_ours:
            gc.unfreeze()
