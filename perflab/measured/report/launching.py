"""Says whether a GPU waits for the host in a call, and whether launching or the device's work made it longer. Pure."""

from __future__ import annotations

from perflab.records import Change
from perflab.units import format_change, format_ns

WAITS = 0.9
"""A call that takes the host this share of its time to launch is as long as that: the device waits for it."""
_MOST_OF_IT = 0.5
"""Share of a call's change that launching has to account for, to be what changed."""


def waits_for_host(call_ns: float, launch_ns: float) -> bool:
    """Whether the call takes what launching it takes, so that its time is no kernel's."""
    return launch_ns >= WAITS * call_ns


def launching_fact(call_ns: float, launch_ns: float | None) -> list[str]:
    """Words for a row whose time is the host's; none for any other."""
    if launch_ns is None or not waits_for_host(call_ns, launch_ns):
        return []
    return [f"launching takes the host {format_ns(launch_ns)} a call, and the device waits for it"]


def launching_text(call: Change, launching: Change) -> str:
    """What launching a call takes now and before, and which part of the call's change that is."""
    took = f"{format_ns(launching.before)} -> {format_ns(launching.now)} ({format_change(launching.ratio)})"
    more_ns, launching_more_ns = call.now - call.before, launching.now - launching.before
    waits, waited = waits_for_host(call.now, launching.now), waits_for_host(call.before, launching.before)
    if not waits:
        return f"the device's work, and not launching it: that takes the host {took}, less than the call"
    if not waited:
        return f"the device waits for the host now, and did not before: launching takes {took}"
    if launching_more_ns >= _MOST_OF_IT * more_ns:
        return f"launching, and not kernels: the device waits for the host, which takes {took}"
    return f"kernels or gaps between them, though the device waits for the host, which takes {took}"
