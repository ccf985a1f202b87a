"""Exports one profiled call for other tools: a Chrome trace for Perfetto, and folded stacks for flame graphs. Pure.

The trace has the format that ``chrome://tracing`` and https://ui.perfetto.dev read ("Trace Event Format", complete
events, times in microseconds). Folded stacks are one line for each stack with the stack's own time in nanoseconds, as
Brendan Gregg's ``flamegraph.pl`` and speedscope read them. A stack has the phase, the user's ranges, the module, then
operators from the outermost on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from perflab.profiles.divided import Kernel, Known
from perflab.profiles.events import NODE, PHASE, Call
from perflab.results.profile import BACKWARD

_DEVICE = 1
_HOST = 0


def chrome_trace(roots: Sequence[Call], kernels: Sequence[Kernel], known: Mapping[int, Known]) -> str:
    """Return the call as a Chrome trace in JSON: a track for each thread of the host and for each stream of a device.

    ``roots`` are the outermost calls of each thread; ``known`` is by ``id`` of a call.
    """
    calls = [call for root in roots for call in root.walk()]
    begin_ns = min((call.event.start_ns for call in calls), default=0)
    by_operator = {call.event.correlation: known[id(call)] for call in calls if id(call) in known}
    events = [
        _event(call.name, call.event.start_ns - begin_ns, call.total_ns, _HOST, call.event.thread, known.get(id(call)))
        for call in calls
    ]
    events += [
        _event(
            one.name,
            one.start_ns - begin_ns,
            one.end_ns - one.start_ns,
            _DEVICE + one.device,
            one.stream,
            by_operator.get(one.operator),
        )
        for one in kernels
    ]
    devices = sorted({one.device for one in kernels})
    names = [
        _name("process_name", number, 0, name)
        for number, name in ((_HOST, "host"), *((_DEVICE + at, f"device {at}") for at in devices))
    ]
    names += [
        _name("thread_name", _DEVICE + device, stream, f"stream {stream}")
        for device, stream in sorted({(one.device, one.stream) for one in kernels})
    ]
    return json.dumps({"traceEvents": [*names, *events], "displayTimeUnit": "ms"})


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _event(name: str, start_ns: int, length_ns: int, process: int, thread: int, known: Known | None) -> dict[str, Any]:
    told = (
        {
            "category": known.category,
            "operator": known.name,
            "phase": known.phase,
            "module": known.where.module,
            "line": known.where.line,
            "shapes": known.shapes,
        }
        if known is not None
        else {}
    )
    return {
        "ph": "X",
        "name": name,
        "ts": start_ns / 1e3,
        "dur": length_ns / 1e3,
        "pid": process,
        "tid": thread,
        "args": {key: value for key, value in told.items() if value},
    }


def folded_stacks(roots: Iterable[Call], known: Mapping[int, Known]) -> str:
    """Return the own time of the host's calls as folded stacks, one line for each stack, in nanoseconds.

    Frames of the autograd engine stand within the phase and module of their operators.
    """
    sums: dict[str, int] = defaultdict(int)
    for root in roots:
        for call in root.walk():
            if call.self_ns > 0:
                sums[";".join(map(_frame, _stack(call, known)))] += call.self_ns
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


def _frame(name: str) -> str:
    """Return a name as one frame: without the characters that end a frame or a line, and never empty."""
    return " ".join(name.replace(";", ":").split()) or "(no name)"
