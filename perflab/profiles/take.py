"""Takes the profile of a call: once with modules, lines and shapes, then several times with as little as possible.

The first pass disturbs times, since it marks every module and every line with a range of the profiler. So times come
from calls in which the profiler records operators alone, and the two passes are joined operator by operator. Calls
without a profiler run between these, which gives the time that the profile has to add up to.

One profiled call is exported for other tools: a Chrome trace for Perfetto, and folded stacks for flame graphs.

The trace has the format that ``chrome://tracing`` and https://ui.perfetto.dev read ("Trace Event Format", complete
events, times in microseconds). Folded stacks are one line for each stack with the stack's own time in nanoseconds, as
Brendan Gregg's ``flamegraph.pl`` and speedscope read them. A stack has the phase, the user's ranges, the module, then
operators from the outermost on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perflab.attribution.places import Places, module_names
from perflab.attribution.reachable import collector_off, reachable
from perflab.base.data import changed
from perflab.base.errors import UsageError
from perflab.base.files import write_whole
from perflab.measure.clocks import clock
from perflab.profiles.divided import FREE, Kernel, Known
from perflab.profiles.events import NODE, PHASE, Call, operators
from perflab.profiles.python_lines import MOST_EVENTS, PlainPython, lines_watched
from perflab.profiles.reading import Reading, known_by_call, known_of, with_lines
from perflab.profiles.recording import Recorded, cost_of, recorded_calls, recording, refuse_another_profiler, run_marked
from perflab.profiles.text import CANT_TELL
from perflab.ranks.group import together
from perflab.results.profile import BACKWARD, Profile

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload
    from perflab.measure.clocks.clock import Stopwatch


__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

MOST_ROUNDS = 8
"""The greatest number of rounds in which plain and profiled calls take turns: the more rounds, the less a drifting
machine makes the two differ."""
LEAST_ROUNDS, LEAST_ROUNDS_OF_LONG = 2, 4
_LONG_NS = 1e8
"""The length in nanoseconds above which a call on a CPU does not depend on what ran before it."""
MOST_CALLS = 40
"""The greatest number of profiled calls: more calls show nothing new, and their events fill memory."""
LEAST_CALLS = 15
"""The least number of calls that a profile takes: three that find places, one timed, two rounds of four, or four of
two, and three whose lines of Python are watched."""
LEAST_ON_CUDA = 5
"""The least number of calls in a round on CUDA: one is only the beginning of the next, and plain calls begin on an
idle device."""


_WATCHED_CALLS = 3
"""The number of calls that are watched for lines of Python. A number that is equal in all of them counts as the
number in each call."""


@dataclass(frozen=True)
class ProfilePlan:
    """The settings by which a case is profiled."""

    budget_ns: float
    """How many nanoseconds the case's calls may take, after the few calls that find places; each kind of call is
    made a few times at least."""
    files: Path | None = None
    """The path at which one call is written for other tools, without the endings ``.trace.json`` and ``.folded``;
    None: no files."""


def take_profile(
    workload: Workload, device: torch.device, stopwatch: Stopwatch, plan: ProfilePlan, progress: Callable[[str], None]
) -> Profile:
    """Profile one call of a workload that is warm; ``progress`` is called with the name of each step as it begins.

    Raises:
        UsageError: another profiler runs, or perflab's own recorded nothing.
        Exception: whatever the workload raises.
    """
    refuse_another_profiler("profile")
    progress("profile: places")
    places = Places(module_names(reachable(workload.roots)))
    known, devices, notes = _known(workload, device, places)
    if devices > 1:
        notes.append(
            f"timed by the host's clock, until all {devices} devices are idle; the case's own times wait for {device}"
        )
    on_cuda = device.type == "cuda"
    workload.make_ready(1)
    (call_ns,) = together().most(stopwatch.time(workload, 1).total_ns)  # ranks make as many calls
    turns = _turns(plan.budget_ns, max(1.0, call_ns), on_cuda=on_cuda)
    backward = any(one.name.startswith(NODE) for one in known)
    reading = Reading(known, FREE if on_cuda else cost_of(workload.spans, backward=backward))
    plain_ns: list[float] = []
    waiting: list[float] = []
    profilers = []
    for number in range(turns.rounds):
        progress(f"profile: round {number + 1} of {turns.rounds}")
        if turns.has_first:
            workload.run()
        if on_cuda:  # calls that follow each other, without a wait for the device between them
            plain_ns += [_in_a_row_ns(workload, stopwatch, turns.calls, devices)] * (turns.calls - 1)
        else:
            for _ in range(turns.calls):
                total_ns, waits = _plain(workload, stopwatch)
                plain_ns.append(total_ns)
                waiting.append(waits)
        if on_cuda:  # nothing may run between these calls: work after a call's beginning counts as the call's
            workload.make_ready(turns.calls + turns.has_first)
        with recording(device.type) as profiler:
            if turns.has_first:
                workload.run()
            for _ in range(turns.calls):
                if not on_cuda:
                    workload.make_ready(1)
                run_marked(workload)
        profilers.append(profiler)
    with collector_off():  # events are many and none is garbage: a collection takes half of the time
        for profiler in profilers:
            reading.add(device.type, recorded_calls(profiler, turns.calls))
    if min(plain_ns) <= 0:
        raise UsageError("the clock did not move while a call was timed", "profile more work in a call")
    profile = _with_waits(reading.profile(device.type, plain_ns, notes), min(waiting, default=0.0))
    profile = changed(profile, called=places.called)
    if not on_cuda:
        progress("profile: lines of Python")
        profile = _with_plain_python(profile, workload, known)
    if plan.files is not None:
        # The recorded call whose time is nearest to the mean: files for other tools should show what the table shows.
        read_ns = reading.profiled_ns
        at = min(range(len(read_ns)), key=lambda number: abs(read_ns[number] - profile.profiled_ns))
        a_round = len(read_ns) // turns.rounds  # on CUDA one less than the calls: the first is only the beginning
        shown = recorded_calls(profilers[at // a_round], turns.calls)[at % a_round + turns.calls - a_round]
        try:
            _write(plan.files, shown, known)
        except OSError as error:
            said = f"could not write {plan.files}.trace.json and .folded: {error.strerror or error}"
            return changed(profile, notes=[*profile.notes, said])
    return profile


def _plain(workload: Workload, stopwatch: Stopwatch) -> tuple[int, float]:
    """Return a call's nanoseconds without a profiler, and the share in which the calling thread does not run."""
    workload.make_ready(1)
    # Both clocks are real, whatever the stopwatch reads. Processor time is read outside of the other clock, so that
    # no wait is made up.
    used_ns = time.thread_time_ns()
    begun_ns = time.perf_counter_ns()
    total_ns = stopwatch.time(workload, 1).total_ns
    lasted_ns = time.perf_counter_ns() - begun_ns
    used_ns = time.thread_time_ns() - used_ns
    return total_ns, max(0.0, 1.0 - used_ns / max(1, lasted_ns))


def _with_waits(profile: Profile, share: float) -> Profile:
    """Add a note that calls wait, if they do.

    ``share`` is the least share of a call in which the calling thread does not run. If little of the time is
    ``python``, there is no note: then operators wait, for threads of their own.
    """
    python_ns = sum(row.time_ns for row in profile.rows if row.category == "python")
    if min(share, python_ns / profile.timer_ns) <= CANT_TELL:
        return profile
    said = (
        f"can't tell where all of the time goes: the calling thread waits for at least {share:.0%} of each call (for "
        "threads that PyTorch's profiler does not record, for files, or for a processor)"
    )
    return changed(profile, notes=[*profile.notes, said])


def _in_a_row_ns(workload: Workload, stopwatch: Stopwatch, calls: int, devices: int) -> float:
    """Return the mean time in nanoseconds of calls in a row.

    On several devices, the time lasts until all devices are idle, since a stopwatch's events are of one device.
    """
    workload.make_ready(calls)
    if devices == 1:
        return stopwatch.time(workload, calls).total_ns / calls
    clock.wait_for_devices()
    begun_ns = clock.read_ns()
    for _ in range(calls):
        workload.run()
    clock.wait_for_devices()
    return (clock.read_ns() - begun_ns) / calls


class _Turns(NamedTuple):
    """The numbers of rounds and calls by which profiled and plain calls take turns."""

    rounds: int
    calls: int
    """The number of calls of each kind in a round."""
    has_first: bool
    """Whether one more call runs before these: the first call after other work is slower than the calls that follow."""


def _turns(budget_ns: float, call_ns: float, *, on_cuda: bool) -> _Turns:
    """Return as many rounds and calls as the budget affords, and a few at least."""
    has_first = on_cuda or call_ns <= _LONG_NS
    calls = int(min(MOST_CALLS, budget_ns / ((3.5 if has_first else 2.0) * call_ns)))
    least = LEAST_ON_CUDA if on_cuda else 1
    rounds = max(LEAST_ROUNDS if has_first else LEAST_ROUNDS_OF_LONG, min(MOST_ROUNDS, calls // least))
    return _Turns(rounds, max(least, calls // rounds), has_first)


def _with_plain_python(profile: Profile, workload: Workload, known: Sequence[Known]) -> Profile:
    """Return the profile with rows for lines of plain Python, for which a few more calls are watched.

    The profile is unchanged if compiled code runs, and has only a note if a call has too many events.
    """
    found = PlainPython()
    for _ in range(_WATCHED_CALLS):
        workload.make_ready(1)
        with collector_off(), recording("cpu") as profiler, lines_watched() as run:
            run_marked(workload)
        (recorded,) = recorded_calls(profiler, 1)
        if recorded.is_compiled:
            return profile
        if run.is_over:
            said = f"lines of plain Python are not known: one call has more than {MOST_EVENTS:,} events"
            return changed(profile, notes=[*profile.notes, said])
        by_call, _ = known_by_call(recorded, known)
        found.add(recorded.root, by_call, recorded.phases, run)
    return found.within(profile)


def _write(files: Path, recorded: Recorded, known: Sequence[Known]) -> None:
    by_call, _ = known_by_call(recorded, known)
    files.parent.mkdir(parents=True, exist_ok=True)
    kernels = recorded.kernels
    if kernels:
        foreign = recorded.foreign_within(kernels[0].start_ns, max(one.end_ns for one in kernels))
        kernels = (*kernels, *foreign)
    trace = chrome_trace(recorded.roots, kernels, by_call)
    for ending, text in ((".trace.json", trace), (".folded", folded_stacks(recorded.roots, by_call))):
        write_whole(files.with_name(files.name + ending), text.encode("utf-8", "backslashreplace"))


def _known(workload: Workload, device: torch.device, places: Places) -> tuple[list[Known], int, list[str]]:
    """Return what is known of every operator of a call in order, how many devices work, and notes.

    An operator is known with place, category, shapes and FLOPs.
    """
    plain = _recorded(workload, device, contextlib.nullcontext)
    names, notes = [call.name for call in operators(plain.roots)], list[str]()
    if plain.is_compiled:
        notes.append("torch.compile: modules and lines of compiled code are not known")  # marks would compile it again
        known = known_of(_recorded(workload, device, contextlib.nullcontext), places.named)
    else:
        known = by_line = _marked(workload, device, places, lines=True)
        if [one.name for one in by_line] != names:
            # Calls differ from each other, or modules of PyTorch have left their fast path under the marks for lines.
            known = with_lines(_marked(workload, device, places, lines=False), by_line)
        if not known:
            known = known_of(plain, places.named)
            notes.append("modules and lines are not known: under the marks for them the case does something else")
    devices = {one.device for one in plain.kernels} | {device.index or 0}
    return known, len(devices) if plain.kernels else 1, notes


def _marked(workload: Workload, device: torch.device, places: Places, *, lines: bool) -> list[Known]:
    """Return what is known of every operator of one call under marks; nothing if the call fails with the marks."""
    try:
        recorded = _recorded(workload, device, partial(places.marking, lines=lines))
    except Exception:  # such as code that refuses torch functions: it has just run without marks
        return []
    return known_of(recorded, places.named)


def _recorded(
    workload: Workload, device: torch.device, marking: Callable[[], contextlib.AbstractContextManager[None]]
) -> Recorded:
    """Record one call with shapes and FLOPs, under the given marks."""
    workload.make_ready(1)
    with recording(device.type, shapes=True) as profiler, marking():
        run_marked(workload)
    return recorded_calls(profiler, 1, details=True)[0]


_DEVICE = 1
_HOST = 0


def chrome_trace(roots: Sequence[Call], kernels: Sequence[Kernel], known: Mapping[int, Known]) -> str:
    """Return the call as a Chrome trace in JSON: a track for each thread of the host and for each stream of a device.

    ``roots`` are the outermost calls of each thread; ``known`` is by ``id`` of a call.
    """
    calls = [call for root in roots for call in root.walk()]
    begin_ns = min((call.event.start_ns for call in calls), default=0)
    by_operator = {call.event.correlation: known[id(call)] for call in calls if id(call) in known}
    spans = [
        (call.name, call.event.start_ns, call.event.end_ns, _HOST, call.event.thread, known.get(id(call)))
        for call in calls
    ]
    spans += [
        (one.name, one.start_ns, one.end_ns, _DEVICE + one.device, one.stream, by_operator.get(one.operator))
        for one in kernels
    ]
    tracks = [("process_name", _HOST, 0, "host")]
    tracks += [("process_name", _DEVICE + at, 0, f"device {at}") for at in sorted({one.device for one in kernels})]
    streams = sorted({(one.device, one.stream) for one in kernels})
    tracks += [("thread_name", _DEVICE + device, stream, f"stream {stream}") for device, stream in streams]
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
        for what, process, thread, name in tracks
    ]
    for name, start_ns, end_ns, process, thread, one in spans:
        event = {"ph": "X", "name": name, "ts": (start_ns - begin_ns) / 1e3, "dur": (end_ns - start_ns) / 1e3}
        told: dict[str, str] = {}
        if one is not None:
            told = {"category": one.category, "operator": one.name, "phase": one.phase, "module": one.where.module}
            told |= {"line": one.where.line, "shapes": one.shapes}
        events.append(
            event | {"pid": process, "tid": thread, "args": {key: said for key, said in told.items() if said}}
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def folded_stacks(roots: Iterable[Call], known: Mapping[int, Known]) -> str:
    """Return the own time of the host's calls as folded stacks, one line for each stack, in nanoseconds.

    Frames of the autograd engine stand within the phase and module of their operators.
    """
    sums: dict[str, int] = defaultdict(int)
    for root in roots:
        for call in root.walk():
            if call.self_ns > 0:
                # A frame has none of the characters that end a frame or a line, and is never empty.
                frames = (" ".join(name.replace(";", ":").split()) or "(no name)" for name in _stack(call, known))
                sums[";".join(frames)] += call.self_ns
    return "".join(f"{stack} {time_ns}\n" for stack, time_ns in sorted(sums.items()))


def _stack(call: Call, known: Mapping[int, Known]) -> Iterator[str]:
    """Yield a call's stack: phase, the user's ranges, module, then the operators and the ranges within operators.

    A stack that ends in a range has the frame ``python`` at its end.
    """
    chain = [*reversed([*call.above()]), call]
    place = next((known[id(one)] for one in reversed(chain) if id(one) in known), None)
    phases = [one.name.removeprefix(PHASE) for one in chain if one.name.startswith(PHASE)]
    if place is not None and place.phase:
        phases = [place.phase]
    elif not phases and any(one.name.startswith(NODE) for one in chain):
        phases = [BACKWARD]
    yield from phases
    named = [one for one in chain if not one.is_mark]
    outer = list(takewhile(lambda one: one.is_range, named))
    yield from (one.name for one in outer)
    if place is not None and place.where.module:
        yield place.where.module
    yield from (one.name for one in named[len(outer) :])
    if call.is_range:
        yield "python"
