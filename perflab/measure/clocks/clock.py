"""The host's monotonic clock; ``device_clock.py`` times work by an accelerator's own.

``read_ns`` is the only place where perflab reads the host's clock for a measurement, and ``read_processor_ns`` the only
one for a prediction's budget, so that a test can put a virtual clock in their place and tell an exact story.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Protocol

from perflab.devices.kinds import kind_of

if TYPE_CHECKING:
    from perflab.measure.calls.workload import Outputs, Workload
    from perflab.measure.clocks.device_clock import Reading

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_READINGS_OF_A_STEP = 100

read_ns: Callable[[], int] = time.perf_counter_ns
"""Nanoseconds on the host's monotonic clock."""
read_processor_ns: Callable[[], int] = time.thread_time_ns
"""Processor time of this thread in nanoseconds; time that neighbours on the machine take is not included."""
read_all_processors_ns: Callable[[], int] = time.process_time_ns
"""Processor time of all threads of this process in nanoseconds."""


def step_ns() -> int:
    """Return the smallest step of the host's clock among a few readings, in nanoseconds; 0 if the clock stands still.

    The step includes the cost of a reading.
    """
    readings = [read_ns() for _ in range(_READINGS_OF_A_STEP)]
    return min((late - early for early, late in pairwise(readings) if late > early), default=0)


def read_blocks() -> int | None:
    """Return how often this thread has waited for something other than a core, such as a lock; None if unknown."""
    if sys.platform != "linux":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def wait_for_devices() -> None:
    """Wait until all accelerators that this process uses are idle."""
    torch = sys.modules.get("torch")  # if nobody loaded torch, no work can be under way
    if torch is not None and (accelerator := torch.accelerator.current_accelerator()) is not None:
        kind_of(accelerator.type).wait_for_all(accelerator.type)


@dataclass(frozen=True)
class Sample:
    """Time of ``repetitions`` successive calls, and of each phase within them, in nanoseconds."""

    total_ns: int
    phases_ns: dict[str, int] = field(default_factory=dict)
    apart_ns: int = 0
    """Time between the calls, in which caches were evicted; not part of ``total_ns``."""
    cpu_ns: int | None = None
    """CPU time of the calls alone; None if the CPU time of the process during the sample stands for it."""
    waited_ns: int = 0
    """Time within ``total_ns`` in which the thread waited for a core that other work occupied; 0 if unknown."""
    set_up_ns: int = 0
    """Time before the first call in which the arguments of all calls were made; not part of ``lasted_ns``."""
    outputs: Outputs | None = None
    """Times at which the tokens of the last call came, for a generation; None for other workloads."""
    reading: Reading | None = field(default=None, compare=False)
    """The sample's whole span on a GPU, read by two clocks; None on a CPU."""

    @property
    def lasted_ns(self) -> int:
        """Time from the sample's beginning to its end, including the time between the calls."""
        return self.total_ns + self.apart_ns


class Stopwatch(Protocol):
    """Something that can time a workload."""

    name: str
    evicted_bytes: int | None = None
    """Size of the buffer that is written before each call, so that caches are cold; None: caches are warm."""

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Call the workload ``repetitions`` times and return the times as a sample."""
        ...

    def empty_call_ns(self) -> float | None:
        """Return the measured time of an empty call in nanoseconds; None if calls share a reading of the clock."""
        return None

    def release(self) -> None:
        """Free the memory that timing uses; the next sample allocates it again."""
        return


class HostStopwatch(Stopwatch):
    """A stopwatch on the host's monotonic clock, for calls that return only when their work is done, as on a CPU.

    Args:
        wait: waits until a device is idle, for a device whose calls return earlier and whose events cannot time them.
    """

    name = "host"

    def __init__(self, wait: Callable[[], None] | None = None) -> None:
        self._wait = wait

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Time calls in a row.

        Without phases, the clock is read outside of the timing loop, so all calls share the cost of a reading. With
        phases, the clock is also read at the beginning of each call and at the end of each span; a device is waited for
        before each reading.
        """
        if not workload.phases:
            call, wait = workload.run, self._wait
            if wait is not None:
                wait()
            start = read_ns()
            for _ in repeat(None, repetitions):
                call()
            if wait is not None:
                wait()
            return Sample(read_ns() - start)

        spent = dict.fromkeys(workload.phases, 0)
        marks: list[int] = []

        def read() -> None:
            marks.append(read_ns())

        def wait_and_read() -> None:
            if self._wait is not None:
                self._wait()
            marks.append(read_ns())

        mark = read if self._wait is None else wait_and_read

        start = read_ns()
        for _ in repeat(None, repetitions):
            marks.clear()
            mark()
            workload.run(after_phase=mark)
            for name, begin, end in zip(workload.spans, marks, marks[1:], strict=False):
                spent[name] += end - begin
        return Sample(read_ns() - start, spent)
