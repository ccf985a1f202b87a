"""Measures one side of a comparison in turns: some samples now, more when it is this side's turn again."""

from __future__ import annotations

import contextlib
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from perflab.base.identity import DEFAULT, Mode
from perflab.devices.kinds import backend_of
from perflab.measure.clocks import clock
from perflab.measure.clocks.clock import Sample
from perflab.measure.clocks.device_clock import Reading, check_agreement
from perflab.measure.machine.devices import current_device, keep_freed_memory, release_memory
from perflab.measure.memory.alike import Watched
from perflab.measure.stopping import Plan, Warmup, warm_up
from perflab.measurement.measurement import collector_at_ease, stopwatch_for, try_profile
from perflab.measurement.passes import Weight, tried, weigh
from perflab.measurement.ranks import Agreed, largest, slowest
from perflab.profiles.take import ProfilePlan
from perflab.ranks.group import together

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload
    from perflab.measure.counts.counter import CallCounter
    from perflab.results.peak import Peak
    from perflab.results.profile import Profile

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


OTHER_THREADS = 0.02
"""Share of a sample up to which the work of the process's other threads takes no core from the sample's thread."""


class Turns:
    """A context manager that measures a workload piece by piece, while others use the machine in between.

    The caller must have collected the garbage of earlier work. On CUDA, cached memory is released after each turn if
    ``hands_back`` is set: another process needs this memory for its turn.
    """

    def __init__(
        self,
        workload: Workload,
        device: torch.device,
        plan: Plan,
        counter: CallCounter | None = None,
        mode: Mode = DEFAULT,
        *,
        hands_back: bool = True,
        draw: random.Random | None = None,
    ) -> None:
        """``draw`` decides at random how many samples are thrown away; None: a generator of its own."""
        self._counter = counter
        self._workload = workload
        self._device = device
        self._plan = plan
        self._hands_back = hands_back and not backend_of(device).is_host
        self._stopwatch = stopwatch_for(device, mode)
        self._watched = Watched(workload, device)
        self._next = workload if mode.cuda_graph else self._watched
        self._around = contextlib.ExitStack()
        self._in_step = together()
        self._draw = draw or self._in_step.draw()  # never the module's generator: the workload may seed it
        self._readings: list[Reading | None] = []
        self.clock = self._stopwatch.name

    def __enter__(self) -> Turns:
        keep_freed_memory()
        self._around.enter_context(current_device(self._device))
        self._around.enter_context(collector_at_ease())
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopwatch.release()
        self._around.close()

    def warm_up(self) -> Warmup:
        """Call the workload until readings agree, as in any measurement."""
        agreed = Agreed(self._workload, self._plan, self._in_step)
        warmup = warm_up(self._time, agreed.plan, _say_nothing, agreed.most_calls, agreed.read_ns)
        self._watched.look_early(warmup.calls)
        self._hand_back()
        return warmup

    def take(self, repetitions: int, samples: int, *, rewarm: bool, core: int | None = None) -> list[Sample]:
        """Take some samples in a row.

        Args:
            repetitions: calls in a sample.
            samples: number of samples.
            rewarm: whether to take one or two more samples first and throw them away: caches hold what ran here last,
                which was somebody else's work. The extra samples are worth their time if a sample is short.
            core: the core on which this thread begins; the thread stays free to move, as do all threads that it starts.
                Ranks begin on any core, since no two should share one.

        Raises:
            ClockError: CUDA events disagree with the host's clock.
        """
        if core is not None and self._in_step.world_size == 1:
            # Without binding the thread: an unbound thread mostly stays where it last ran.
            free = os.sched_getaffinity(0)
            with contextlib.suppress(OSError):  # the core was taken from us meanwhile: any other will do
                os.sched_setaffinity(0, {core})
                os.sched_setaffinity(0, free)
        # One or two, by chance: a cost in every second call would else fall into all samples of a side, or into none.
        for _ in range(self._draw.randint(1, 2) if rewarm else 0):
            self._time(repetitions)
        taken = [self._time_beside_others(repetitions) for _ in range(samples)]
        self._readings += [sample.reading for sample in taken]
        check_agreement(self._readings, more_to_come=True)
        self._hand_back()
        return taken

    def check_clock(self) -> None:
        """Check the clocks of all samples once more when the last was taken, since long calls give few samples.

        Raises:
            ClockError: CUDA events disagree with the host's clock.
        """
        check_agreement(self._readings)

    def weigh(self) -> Weight:
        """Return the memory, counts and result of one call."""
        self._stopwatch.release()
        weight = weigh(self._watched, self._device, self._counter)
        memory, counts = largest(weight.memory, weight.counts, self._in_step)
        return replace(weight, memory=memory, counts=counts)

    def profile(self, budget_ns: float) -> tuple[Profile | None, str | None]:
        """Return the profile of one call's time, or the reason why there is none."""
        found = try_profile(self._workload, self._device, ProfilePlan(budget_ns), _say_nothing)
        self._hand_back()
        return found

    def take_apart(self) -> tuple[Peak | None, str | None]:
        """Return what is alive at the peak of one call, or the reason why that is not known."""
        from perflab.profiles.take_peak import take_peak

        self._stopwatch.release()
        found = tried(lambda: take_peak(self._workload, self._device))
        self._hand_back()
        return found

    def _time(self, repetitions: int) -> Sample:
        set_up_ns = self._workload.make_ready(repetitions)
        return replace(self._sample(repetitions), set_up_ns=set_up_ns)

    def _sample(self, repetitions: int) -> Sample:
        """Take a sample of calls that have been made ready."""
        timed, self._next = self._next, self._workload
        self._in_step.wait()
        return slowest(self._stopwatch.time(timed, repetitions), self._in_step)

    def _time_beside_others(self, repetitions: int) -> Sample:
        """Take a sample and note how long its thread waited for a core that other processes had.

        The waiting time is known only if the thread waited for nothing else and no other thread of its process worked.
        """
        set_up_ns = self._workload.make_ready(repetitions)
        before = clock.read_blocks()
        began_ns = (clock.read_ns(), clock.read_processor_ns(), clock.read_all_processors_ns())
        sample = replace(self._sample(repetitions), set_up_ns=set_up_ns)
        ended_ns = (clock.read_ns(), clock.read_processor_ns(), clock.read_all_processors_ns())
        if self._in_step.world_size > 1:  # which wait for each other
            return sample
        if before is None or clock.read_blocks() != before or self._stopwatch.name != "host" or sample.apart_ns:
            return sample
        lasted_ns, own_ns, all_ns = (end - begin for begin, end in zip(began_ns, ended_ns, strict=True))
        if all_ns - own_ns > OTHER_THREADS * lasted_ns:
            return sample
        return replace(sample, waited_ns=max(0, min(lasted_ns - own_ns, sample.total_ns - 1)))

    def _hand_back(self) -> None:
        if self._hands_back:
            release_memory(self._device)


def _say_nothing(_what: str) -> None:
    """Ignore a progress message: a side's process has nobody to report progress to."""
