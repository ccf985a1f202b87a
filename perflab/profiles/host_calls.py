"""Which calls of CUDA the host makes more or less often: facts that have no time of their own in a call. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from perflab.measure.events import kind_of
from perflab.profiles.facts import HALF, is_whole
from perflab.profiles.records import ON_HOST, VARY, CudaCall, Part, Profile


def counted(calls: Iterable[CudaCall]) -> list[CudaCall]:
    """Those that counts count: launches, and waits for the device."""
    return [one for one in calls if kind_of(one.name) != "other call"]


def host_parts(base: Profile, head: Profile, *, with_launches: bool) -> list[Part]:
    """A part for each, the most calls first; none where a profile was stored that does not know them.

    Args:
        base, head: profiles of one case.
        with_launches: name launches beside waits: where no operator is called more often, of which they are.
    """
    if not base.cuda_calls or not head.cuda_calls:
        return []
    before, now = ({one.name: one.instances for one in counted(side.cuda_calls)} for side in (base, head))
    parts = (
        _part(name, before.get(name, 0.0), now.get(name, 0.0))
        for name in {**before, **now}
        if with_launches or kind_of(name) == "wait"
    )
    return sorted((one for one in parts if abs(one.more) > HALF), key=lambda one: (-abs(one.more), one.operator))


def _part(name: str, before: float, now: float) -> Part:
    varies = not (is_whole(before) and is_whole(now))
    return Part(
        change_ns=0.0, operator=name, more=round(now - before, 2), inputs=VARY if varies else "", category=ON_HOST
    )
