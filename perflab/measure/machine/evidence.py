"""Records interference: other processes, stolen time, clocks. Read before and after the samples.

The machine's counters are read in one place (``read_host``), so that a test can replace them. The counters run on the
kernel's real time, not on ``measure.clock``. ``devices.gpu_state`` reads the state of a GPU. Nothing here raises: a
value that the system does not report is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perflab.devices.kinds import backend_of
from perflab.ranks.group import ALONE, Together
from perflab.results.environment import core_numbers
from perflab.results.measurement import Evidence, GpuState

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

SHORTEST_SPAN_NS = 250_000_000
"""Shortest span with shares of CPU time: in less, ticks of 10 ms a core cannot resolve a tenth of two cores."""
_LIVE_SHARE = 0.5
"""Least share of the elapsed time that CPU counters must add up to: a sandbox's counters may stand still."""


@dataclass(frozen=True)
class CpuTime:
    """Time of some cores since the machine started, in nanoseconds, summed over the cores."""

    cores: int
    total_ns: int
    busy_ns: int
    stolen_ns: int


@dataclass(frozen=True)
class Host:
    """The machine's counters at one moment; None for a counter that the system does not have."""

    at_ns: int
    cpu: CpuTime | None = None
    own_ns: int | None = None
    """CPU time of this process and its children."""
    waited_ns: int | None = None
    """Time in which some thread of the machine waited for a core."""
    switches: int | None = None
    load_average: float | None = None
    mhz: float | None = None


class Witness:
    """Records what may have disturbed the samples, from readings before and after them."""

    def __init__(self, device: torch.device, in_step: Together = ALONE) -> None:
        self._in_step = in_step
        self._read_gpu = backend_of(device).state_reader()  # opens NVML, which takes a while, ahead of the samples

    def begin(self) -> Callable[[], Evidence]:
        """Begin the span of the samples; return a function that ends the span and returns the evidence."""
        gpu_before = self._read_gpu()
        before = read_host()

        def end() -> Evidence:
            after = read_host()
            if self._in_step.world_size > 1:  # other ranks are part of the case, and no disturbance
                ranks_ns = self._in_step.gathered((after.own_ns or 0) - (before.own_ns or 0))
                after = replace(after, own_ns=(before.own_ns or 0) + sum(ranks_ns))
            return between(before, after, gpu_before, self._read_gpu())

        return end


def read_linux_host() -> Host:
    """Read the counters that the system has; on systems other than Linux, the load and little else."""
    children_ns = _live_children_ns()  # first, and the rest as close together as can be
    return Host(
        at_ns=time.monotonic_ns(),
        cpu=_try(lambda: parse_cpu_time(_text("/proc/stat"), core_numbers(), 10**9 // os.sysconf("SC_CLK_TCK"))),
        own_ns=_try(lambda: _used_ns() + children_ns),
        waited_ns=_try(lambda: parse_pressure(_text("/proc/pressure/cpu"))),
        switches=_try(_involuntary_switches),
        load_average=_try(lambda: round(os.getloadavg()[0], 2)),
        mhz=_try(_current_mhz),
    )


read_host: Callable[[], Host] = read_linux_host


def between(begin: Host, end: Host, gpu_before: GpuState | None = None, gpu_after: GpuState | None = None) -> Evidence:
    """Return the evidence that two readings give of the time between them."""
    span_ns = end.at_ns - begin.at_ns
    neighbours_cores = steal_share = pressure_share = None
    if span_ns >= SHORTEST_SPAN_NS:
        if begin.cpu and end.cpu and end.cpu.total_ns - begin.cpu.total_ns >= _LIVE_SHARE * span_ns * end.cpu.cores:
            busy_ns = end.cpu.busy_ns - begin.cpu.busy_ns
            stolen_ns = max(0, end.cpu.stolen_ns - begin.cpu.stolen_ns)
            if begin.own_ns is not None and end.own_ns is not None:
                others_ns = busy_ns - (end.own_ns - begin.own_ns)
                neighbours_cores = round(max(0.0, others_ns / span_ns), 3)
            steal_share = round(stolen_ns / max(1, busy_ns + stolen_ns), 4)
        if begin.waited_ns is not None and end.waited_ns is not None:
            pressure_share = round((end.waited_ns - begin.waited_ns) / span_ns, 4)
    switches = end.switches - begin.switches if begin.switches is not None and end.switches is not None else None
    return Evidence(
        span_ns=span_ns,
        neighbours_cores=neighbours_cores,
        steal_share=steal_share,
        pressure_share=pressure_share,
        involuntary_switches=switches,
        load_average=begin.load_average,
        cpu_mhz_before=begin.mhz,
        cpu_mhz_after=end.mhz,
        gpu_before=gpu_before,
        gpu_after=gpu_after,
    )


def parse_cpu_time(stat: str, cpus: Collection[int], tick_ns: int) -> CpuTime | None:
    """Return the time of ``cpus`` from the text of ``/proc/stat``, which counts the whole host, even in a container.

    The columns are user, nice, system, idle, iowait, irq, softirq, steal (proc(5)); later columns, of guests, are
    included in user and nice already. None if the text has none of these CPUs.
    """
    rows = []
    for line in stat.splitlines():
        name, *columns = line.split() or [""]
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            ticks = [int(column) for column in columns[:8]]
            rows.append(ticks + [0] * (8 - len(ticks)))
    if not rows:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        sum(column) * tick_ns for column in zip(*rows, strict=True)
    )
    total_ns = sum(map(sum, rows)) * tick_ns
    return CpuTime(len(rows), total_ns, busy_ns=user + nice + system + irq + softirq, stolen_ns=steal)


def parse_pressure(text: str) -> int | None:
    """Return the nanoseconds of the line ``some avg10=… avg60=… avg300=… total=<µs>`` of ``/proc/pressure/cpu``.

    None if there is no such line.
    """
    for line in text.splitlines():
        kind, *fields = line.split() or [""]
        if kind == "some":
            return next((1000 * int(field[6:]) for field in fields if field.startswith("total=")), None)
    return None


def parse_process(stat: str) -> tuple[int, int, int]:
    """Return a process's parent, the CPU ticks of the process and its ended children, and its last CPU.

    ``stat`` is the text of ``/proc/<pid>/stat`` (proc(5): fields 4, 14 to 17 and 39). The second field, the process's
    name in parentheses, may hold spaces and parentheses.
    """
    fields = stat.rpartition(")")[2].split()
    return int(fields[1]), sum(int(field) for field in fields[11:15]), int(fields[36])


def _used_ns() -> int:
    """Return the CPU time of this process, all of its threads, and its ended children, in nanoseconds."""
    import resource  # not on Windows

    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return round(1e9 * sum(usage.ru_utime + usage.ru_stime for usage in usages))


def _live_children_ns() -> int:
    """Return the CPU time of live descendants in nanoseconds: a data loader's workers belong to the case."""
    parents, ticks = {}, {}
    for pid in [int(name) for name in _try(lambda: os.listdir("/proc")) or () if name.isdigit()]:
        try:
            parents[pid], ticks[pid], _ = parse_process(_text(f"/proc/{pid}/stat"))
        except (OSError, ValueError, IndexError):
            continue  # ended meanwhile
    ours, children = set[int](), {os.getpid()}
    while children:
        ours |= children
        children = {pid for pid, parent in parents.items() if parent in children} - ours
    used = sum(ticks.get(pid, 0) for pid in ours - {os.getpid()})
    return used * 10**9 // os.sysconf("SC_CLK_TCK") if used else 0


def _involuntary_switches() -> int:
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _current_mhz() -> float:
    cpu = parse_process(_text("/proc/self/stat"))[2]
    return int(_text(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")) / 1000


def _text(path: str) -> str:
    return Path(path).read_text(encoding="ascii", errors="replace")


def _try(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (OSError, AttributeError, ImportError, ValueError, IndexError):
        return None  # this system does not tell
