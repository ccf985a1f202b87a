"""Tells whether a GPU waits for the host, and whether launching or the device's work made a call longer. Pure."""

from __future__ import annotations

from perflab.results.records import Change
from perflab.units import format_change, format_ns

WAITS = 0.9
"""If launching a call takes the host this share of the call's time, launching determines it: the device waits."""
_MOST_OF_IT = 0.5
"""Share of a call's change for which launching must account to be named as the cause."""


def waits_for_host(call_ns: float, launch_ns: float) -> bool:
    """Whether launching determines the call's time, so that kernels do not."""
    return launch_ns >= WAITS * call_ns


def launching_fact(call_ns: float, launch_ns: float | None) -> list[str]:
    """Return a fact for a row whose time the host determines; an empty list for any other."""
    if launch_ns is None or not waits_for_host(call_ns, launch_ns):
        return []
    return [f"launching takes the host {format_ns(launch_ns)} a call, and the device waits for it"]


def launching_text(call: Change, launching: Change) -> str:
    """Describe the time to launch a call before and now, and whether launching caused the call's change."""
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
