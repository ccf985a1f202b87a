"""One profiled call for other tools: a Chrome trace for Perfetto, and folded stacks for flame graphs. Pure.

The trace is the format that ``chrome://tracing`` and https://ui.perfetto.dev read ("Trace Event Format", complete
events, times in microseconds). Folded stacks are one line a stack with its own time in nanoseconds, as Brendan Gregg's
``flamegraph.pl`` and speedscope read them: phase, module, then operators from the outermost on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perflab.profiles.device import Kernel
from perflab.profiles.events import PHASE, Call
from perflab.profiles.host import Known

_DEVICE = 1
_HOST = 0


def chrome_trace(roots: Sequence[Call], kernels: Sequence[Kernel], known: Mapping[int, Known]) -> str:
    """The call as a Chrome trace: a track for each thread of the host and for each stream of a device.

    Args:
        roots: the outermost calls of each thread.
        kernels: what devices did.
        known: by ``id`` of a call, what is known of it.
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
    """The host's own time by stack; the engine's frames of a backward stand within their phase and module."""
    sums: dict[str, int] = defaultdict(int)
    for root in roots:
        for call in root.walk():
            if call.self_ns > 0:
                sums[";".join(_frames(call, known))] += call.self_ns
    return "".join(f"{stack} {time_ns}\n" for stack, time_ns in sorted(sums.items()))


def _frames(call: Call, known: Mapping[int, Known]) -> list[str]:
    one = known.get(id(call))
    place = [one.phase, one.where.module] if one is not None else []
    above = [other.name for other in call.above() if not other.is_range]
    names = [*reversed(above), call.name]
    if one is None and call.is_mark:  # ranges of ours, in which Python runs
        place, names = [call.name.removeprefix(PHASE)] if call.name.startswith(PHASE) else [], ["python"]
    return [name.replace(";", ":").replace("\n", " ") for name in (*filter(None, place), *names)]
