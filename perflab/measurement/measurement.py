"""One measurement: warm up, sample, count, take memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from perflab.base.data import changed
from perflab.base.errors import PerflabError
from perflab.base.identity import DEFAULT, Mode
from perflab.devices.backend import Quantity
from perflab.devices.kinds import backend_of
from perflab.internals.lookup import switched_off
from perflab.internals.of_torch.originals import check_originals
from perflab.measure.calls.nvtx import (
    MEMORY,
    OPERATOR_CALLS,
    OPERATORS,
    SAMPLES,
    WARM_UP,
    RangedWorkload,
    nvtx_range,
    ranges_asked,
)
from perflab.measure.calls.same import Comparing
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks import clock
from perflab.measure.clocks.calibration import CalibrationWorkload
from perflab.measure.clocks.clock import HostStopwatch, Sample, Stopwatch
from perflab.measure.clocks.cold import ColdDeviceStopwatch, ColdHostStopwatch
from perflab.measure.clocks.cuda_graph import GraphStopwatch
from perflab.measure.clocks.device_clock import DeviceStopwatch, wait_of_the_host
from perflab.measure.clocks.launching import launch_ns
from perflab.measure.clocks.span import EVENT_STEP_NS, check_agreement
from perflab.measure.counts.counter import CallCounter
from perflab.measure.machine.allocator import keep_freed_memory
from perflab.measure.machine.caches import Eviction
from perflab.measure.machine.devices import current_device
from perflab.measure.machine.evidence import Witness
from perflab.measure.memory.alike import Watched
from perflab.measure.memory.peak import MEMORY_CALLS, measure_memory
from perflab.measure.sampling.generation import generation_of
from perflab.measure.sampling.statistics import relative_half_width
from perflab.measure.sampling.stopping import SAMPLE_TARGET_NS, Plan, Progress, collect, warm_up
from perflab.measurement.leaks import find_leak
from perflab.measurement.ranks import Agreed, of_all_ranks, slowest
from perflab.ranks.group import together
from perflab.results.measurement import Measurement, Memory, OutOfMemory, Replicate, per_call_ns, summarize

if TYPE_CHECKING:
    import torch

    from perflab.profiles.take import ProfilePlan
    from perflab.results.profile import Profile

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_Found = TypeVar("_Found")
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
    workload = RangedWorkload(workload) if ranges_asked() and backend_of(device).tells(Quantity.RANGES) else workload
    watched = Watched(workload, device)
    stopwatch = stopwatch_for(device, mode)
    calibration = CalibrationWorkload(device)
    cpu_ns: list[int] = []
    in_step = together()
    compares = in_step.world_size == 1 and not mode.cuda_graph  # replays of a graph return nothing
    comparing = Comparing(workload)
    sampling = False
    agreed = Agreed(workload, plan, in_step)
    plan = agreed.plan
    own_ns: list[int] = []
    witness = Witness(device, in_step)

    is_cold_start = plan.warmup == 0 or mode.cuda_graph  # the first call is timed, or is captured in a graph

    keep_freed_memory()
    began_ns = agreed.read_ns()

    def time_once(repetitions: int) -> Sample:
        set_up_ns = workload.make_ready(repetitions)
        in_step.wait()
        timed = workload if cpu_ns or is_cold_start else watched
        if compares:
            timed = comparing.wrapped(timed, repetitions, warm=sampling)
        before_ns = time.process_time_ns()
        sample = stopwatch.time(timed, repetitions)
        used_ns = time.process_time_ns() - before_ns
        cpu_ns.append(used_ns if sample.cpu_ns is None else sample.cpu_ns)
        own_ns.append(sample.total_ns)
        comparing.note(timed, warm=sampling)
        return slowest(replace(sample, set_up_ns=set_up_ns, outputs=workload.outputs()), in_step)

    def timed_again() -> None:
        time_once(warmup.repetitions)
        for of_samples in (own_ns, cpu_ns):
            of_samples.pop()

    with current_device(device), collector_at_ease():
        with nvtx_range(f"{label}: {WARM_UP}", device):
            warmup = warm_up(time_once, plan, progress, agreed.most_calls, agreed.read_ns)
        watched.look_early(warmup.calls)
        # The time that the budget leaves for samples: warm-up is over, the memory pass is still to come.
        call_ns = warmup.readings_ns[-1] if warmup.readings_ns else 0
        later_calls = MEMORY_CALLS + (counter.extra_calls if counter is not None else 0)
        left_ns = max(0.0, plan.budget_ns - (agreed.read_ns() - began_ns) - later_calls * call_ns)
        with nvtx_range(f"{label}: {SAMPLES}", device):
            end_of_samples = witness.begin()
            sampling = True
            samples = collect(time_once, warmup.repetitions, plan, left_ns, progress, calibration.read, agreed.read_ns)
            evidence = end_of_samples()
        check_agreement([sample.reading for sample in samples])
        check_originals(device)
        empty_call_ns = stopwatch.empty_call_ns()
        stopwatch.release()  # the eviction buffer and graphs are not part of the case's memory
        progress("memory")
        with nvtx_range(f"{label}: {MEMORY}", device):
            weight = weigh(watched, device, counter)
            generation = generation_of(samples, weight.by_phase, workload.outputs())
        results = None
        if compares:
            results, error = comparing.concluded(comparing.left(weight.result), timed_again)
            if error is not None:
                raise error
        profiled, problem = try_profile(workload, device, profile, progress) if profile is not None else (None, None)
        if isinstance(workload, RangedWorkload):
            from perflab.profiles.operator_ranges import run_with_operator_ranges

            progress(OPERATORS)
            with nvtx_range(f"{label}: {OPERATORS}", device):
                run_with_operator_ranges(workload, device, OPERATOR_CALLS)
    leak, unknown = None, None
    if leak_calls:  # after the block above, in which frozen objects are hidden from the check
        progress("leaks")
        with current_device(device):
            leak, unknown = tried(lambda: find_leak(workload, device, leak_calls))
    return Measured(
        of_all_ranks(
            own_ns[-len(samples) :],
            in_step,
            Measurement(
                samples_ns=[sample.total_ns for sample in samples],
                repetitions=warmup.repetitions,
                warmup_calls=warmup.calls,
                settled=warmup.settled,
                clock=stopwatch.name,
                phases_ns={name: [sample.phases_ns[name] for sample in samples] for name in workload.phases},
                memory=weight.memory,
                calibration_ns=calibration.results_ns(),
                cores_busy=_cores_busy(cpu_ns, samples),
                evidence=evidence,
                counts=weight.counts,
                launch_ns=weight.launch_ns if mode == DEFAULT else None,
                leak=leak,
                off=weight.off if unknown is None else {**weight.off, "memory kept by calls": unknown},
                evicted_bytes=stopwatch.evicted_bytes,
                empty_call_ns=empty_call_ns,
                profile=profiled,
                not_profiled=problem,
                generation=generation,
                results=results,
            ),
        ),
        weight.result,
    )


@dataclass(frozen=True)
class Weight:
    """Memory, counts and result of one call."""

    memory: Memory | None
    counts: dict[str, int]
    off: dict[str, str]
    """The reason why a quantity is unknown, by the quantity's name."""
    result: Any
    """The call's return value."""
    launch_ns: float | None = None
    """Host time to launch a call on a GPU."""
    by_phase: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counts of each phase."""


def weigh(workload: Watched, device: torch.device, counter: CallCounter | None) -> Weight:
    """Measure memory and counts of a call; ``off`` lists the quantities that this PyTorch does not let us read."""
    launching_ns = None
    try:
        if counter is not None:
            counter.count_apart(workload.inner)
            if not backend_of(device).is_host:  # before a result is alive, which may hold as much memory as a call
                launching_ns = launch_ns(workload.inner, device, counter.counts)
        memory, result = measure_memory(workload, device, counter)
    except Exception as error:
        why = switched_off(error)
        if why is None:
            raise
        unknown = ["memory", *(["counts"] if counter is not None else [])]
        return Weight(None, {}, dict.fromkeys(unknown, why.problem), workload.run())
    if counter is None:
        return Weight(memory, {}, {}, result)
    return Weight(memory, dict(sorted(counter.counts.items())), counter.off, result, launching_ns, counter.by_phase)


def try_profile(
    workload: Workload, device: torch.device, plan: ProfilePlan, progress: Progress
) -> tuple[Profile | None, str | None]:
    """Return the profile of a warm workload, or the reason why there is none, so that the measurement is not lost."""
    from perflab.profiles.take import take_profile

    if (why := backend_of(device).MISSING.get(Quantity.PROFILE)) is not None:
        return None, why
    return tried(lambda: take_profile(workload, device, stopwatch_for(device), plan, progress))


def with_what_was_alive(found: OutOfMemory, workload: Workload, device: torch.device) -> OutOfMemory:
    """Return ``found`` with what is alive when another call runs out of memory; unchanged if that is not recorded."""
    from perflab.profiles.take_peak import take_failure

    failure, _ = tried(lambda: take_failure(workload, device))
    return found if failure is None else changed(found, alive=failure.alive.parts, asked_by=failure.asked_by)


def tried(take: Callable[[], _Found]) -> tuple[_Found | None, str | None]:
    """Return the result of ``take``, or the reason of its failure, so that the completed measurement is not lost.

    The user's code may fail in one call more, or under marks: it may count its calls, or refuse subclasses of tensors.
    """
    try:
        return take(), None
    except PerflabError as error:
        return None, f"{error.problem}; {error.remedy}"
    except Exception as error:
        off = switched_off(error)
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return None, off.problem if off is not None else said


def replicate_of(measurement: Measurement) -> Replicate:
    """Summarise a measurement as a replicate, with the noise that the measurement shows by itself."""
    calls = per_call_ns(measurement.samples_ns, measurement.repetitions)
    return summarize(measurement, relative_half_width(calls) + _share_of_resolution(measurement))


def _share_of_resolution(measurement: Measurement) -> float:
    """Return the clock's resolution as a share of the median sample; 0 if that sample has at least its target length.

    Samples are shorter if calls have cold caches, or if there is no room for the arguments of more calls.
    """
    sample_ns = median(measurement.samples_ns)
    if not 0 < sample_ns < SAMPLE_TARGET_NS:
        return 0.0
    return (clock.step_ns() if measurement.clock == HostStopwatch.name else EVENT_STEP_NS) / sample_ns


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


def _cores_busy(cpu_ns: list[int], samples: list[Sample]) -> float | None:
    """Return CPU time over wall time of the samples, whose CPU times end ``cpu_ns``; None if no time passed."""
    wall_ns = sum(sample.lasted_ns if sample.cpu_ns is None else sample.total_ns for sample in samples)
    return round(sum(cpu_ns[-len(samples) :]) / wall_ns, 2) if wall_ns > 0 else None
