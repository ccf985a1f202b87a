"""Short facts about a prediction: what fills memory, what fits, what takes time. Pure.

Facts without information are left out: a result that is small beside the peak, the few percent of memory that the
allocator keeps in any case, a lower bound that assumes most operands to be in the cache.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from perflab.results.peak import PeakPart
from perflab.results.predicted import TO_DEVICE, TO_HOST, WAIT, Fit, Prediction, SavedTensors, Traffic
from perflab.tables.lines import percent
from perflab.units import format_bytes, format_count, format_names, format_ns, format_si

_LEAST_SHARE = 0.01
"""The least share of the peak at which a kind of memory is named."""
_MOST_KINDS = 3
_SHORT = {"optimizer state": "optimizer"}
_NOTICED = 0.01
"""The least share of the peak at which a result that is still alive is worth a fact."""
_FRAGMENTS = 0.1
"""The share of reserved memory from which fragments are worth a fact: a cache keeps a few percent in any case."""
_BOUND = 0.05
"""The least share of the roofline time for a lower bound: a smaller one only shows that most operands fit a cache."""
_LAUNCH_NS = 2_000.0
"""The least nanoseconds a host takes to queue a kernel: if a launch has less work, launches decide the time."""
_FEW_CARDS = 3


@dataclass(frozen=True)
class Checkpoint:
    """A module that saves little for backward if it is checkpointed: its forward then runs again in backward."""

    module: str
    line: str
    """The line at which the module saves most."""
    frees_bytes: int
    """An upper bound of the freed bytes: the bytes that the module saves, without one layer's, which exist again while
    that layer is run again."""
    peak_bytes: int

    def __str__(self) -> str:
        where = f"{self.module} ({self.line})" if self.line else self.module
        freed = f"frees up to {format_bytes(self.frees_bytes)} of {format_bytes(self.peak_bytes)}"
        return f"checkpoint first: {where}, {freed}"


def filled_by(now: Prediction) -> str | None:
    """Name the kinds that fill the memory at the peak, the largest first: ``42% activations (blocks.*)``.

    The largest kind is followed by the module and operator with at least half of its bytes. None if no kind is large
    enough.
    """
    kinds = [(size, kind) for kind, size in now.composition.items() if size >= _LEAST_SHARE * now.peak_bytes]
    kinds = sorted(kinds, key=lambda pair: -pair[0])[:_MOST_KINDS]
    if not kinds or not now.peak_bytes:
        return None
    told = [f"{percent(size / now.peak_bytes, 0)}\u00a0{_SHORT.get(kind, kind)}" for size, kind in kinds]
    where = mostly_in([part for part in now.at_peak if part.category == kinds[0][1]])
    return ", ".join([told[0] + (f" ({where})" if where else ""), *told[1:]])


def mostly_in(parts: Sequence[PeakPart | SavedTensors]) -> str:
    """Return the innermost module with at least half of the bytes, then the module's operator with at least half.

    A module or an operator that does not exist is left out; ``""`` if neither exists.
    """
    total = sum(part.size_bytes for part in parts)
    module = _innermost(parts, total)
    operators = Counter[str]()
    for part in parts:
        if _is_in(part.module, module):
            operators[part.operator] += part.size_bytes
    operator = next((name for name, size in operators.most_common(1) if total and 2 * size >= total), "")
    return " ".join(filter(None, [module, operator]))


def fit_facts(now: Prediction) -> list[str]:
    """Return what would make a case fit, the largest sizes that fit the GPU, and which GPUs the case fits."""
    fit = now.fit
    if fit is None:
        return []
    facts = [_remedies(now, fit)] if not fit.fits and fit.remedies else []
    largest = [f"{name} {size:,}" for name, size in fit.largest.items() if size is not None]
    facts += [f"{now.gpu} takes {' or '.join(largest)}"] if largest else []
    none = [name for name, size in fit.largest.items() if size is None]
    facts += [f"not even the smallest {' or '.join(none)} fits {now.gpu}"] if none else []
    enough = [world for world, peak_bytes in fit.worlds.items() if peak_bytes + now.workspace_bytes <= fit.room_bytes]
    if fit.worlds:
        least = min(enough, default=None)
        facts.append(
            f"{now.gpu} takes it from {least} ranks on, about {format_bytes(fit.worlds[least])} each"
            if least is not None
            else f"{now.gpu} takes it with none of {' or '.join(map(str, fit.worlds))} ranks"
        )
    return [*facts, *([] if now.is_bound else [_cards(fit)])]


def time_facts(now: Prediction) -> list[str]:
    """Return the facts beside the roofline time: an estimate, a lower bound, the limiting resource, launches.

    The limiting resource is arithmetic (compute-bound) or memory (memory-bound).
    """
    facts = [f"estimate {format_ns(now.estimate_ns)}"] if now.estimate_ns is not None else []
    are_launches = not now.is_bound and now.launches * _LAUNCH_NS > (now.roofline_ns or math.inf)
    if now.bound_ns is not None and not are_launches and now.bound_ns >= _BOUND * (now.roofline_ns or 0.0):
        facts.append(f"at least {format_ns(now.bound_ns)}")
    share = compute_bound(now)
    if share is not None and not (now.is_bound and share == 0.0):  # a sheet without rates has bytes alone
        bound = f"{percent(share, 0)} compute-bound" if share >= 0.5 else f"{percent(1 - share, 0)} memory-bound"
        facts.append(", ".join([bound, *([f"{intensity(now.flops, now.bytes_moved)} FLOP/B"] if now.flops else [])]))
    if now.launches and not now.is_bound:
        named = format_count(now.launches, "launch")
        longer = f", which take{'s' if now.launches == 1 else ''} longer" if are_launches else ""
        facts.append(f"{named}{longer}")
    return facts


def memory_facts(now: Prediction) -> list[str]:
    """Return what a real process takes beyond the peak, if it is large enough to matter."""
    facts = []
    room_bytes = now.fit.room_bytes if now.fit is not None else None
    more = (now.keeping_output_bytes or 0) - now.peak_bytes
    if now.keeping_output_bytes is not None and more > _NOTICED * now.peak_bytes:
        past = room_bytes is not None and now.peak_bytes <= room_bytes < now.keeping_output_bytes
        total = format_bytes(now.keeping_output_bytes) + (f", past {now.gpu}" if past else "")
        facts.append(f"+{format_bytes(more)} if the last result is still alive: {total}")
    fragments = now.reserved_bytes - now.allocated_bytes
    past = room_bytes is not None and now.peak_bytes <= room_bytes < now.reserved_bytes
    if now.reserved_bytes and (past or fragments > _FRAGMENTS * now.reserved_bytes):
        shared = f", {percent(fragments / now.reserved_bytes, 0)} of it fragments"
        about = "" if now.dry_run is not None else "about "
        facts.append(f"{about}{format_bytes(now.reserved_bytes)} reserved{shared}{f', past {now.gpu}' if past else ''}")
    return facts


def dry_run_facts(now: Prediction) -> list[str]:
    """Return what only a dry run knows: allocated bytes, the host's time, the host's waits for the device, copies."""
    dry = now.dry_run
    if dry is None:
        return []
    facts = [f"{format_bytes(now.allocated_bytes)} allocated"]
    if dry.replayed:
        facts.append(f"{dry.replayed:,} of them in graphs")
    waits = now.roofline_ns is not None and dry.host_ns > now.roofline_ns
    facts.append(f"the host issues it in {format_ns(dry.host_ns)}{', and the GPU waits for it' if waits else ''}")
    for_device = [one for one in dry.traffic if one.what == WAIT]
    if for_device:
        facts.append(f"{format_count(dry.calls_of(WAIT), 'wait')} for the device ({_lines(for_device)})")
    for way in (TO_DEVICE, TO_HOST):
        copies = [one for one in dry.traffic if one.what == way]
        if copies:
            facts.append(f"{format_bytes(dry.bytes_of(way))} {way} ({_lines(copies)})")
    return facts


def rank_of(now: Prediction) -> str:
    """Return which rank of a group a prediction is of, as far as its file says it."""
    return "one rank" if now.rank is None else f"rank {now.rank}"


def rank_facts(now: Prediction) -> list[str]:
    """Return what one rank of a group communicates in a call; empty for a case in one process."""
    if now.world_size == 1:
        return []
    counts = now.collectives
    facts = [f"{rank_of(now)} of {now.world_size}"]
    if counts.get("collectives"):
        outside = counts["collectives_outside_backward"]
        told = f"{format_count(counts['collectives'], 'collective')} of {format_bytes(counts['collective_bytes'])}"
        facts.append(f"{told}, {outside} outside of backward")
    if now.communication is not None and now.communication.bound_ns:
        one = now.communication
        facts.append(f"{format_bytes(one.sent_bytes)} sent, at least {format_ns(one.bound_ns)} on {one.network}")
        if now.roofline_ns is not None:
            exposed_ns = one.bound_ns - now.roofline_ns
            longer = f"{format_ns(exposed_ns)} longer than" if exposed_ns > 0 else "can hide behind"
            facts.append(f"{longer} the roofline time")
    return facts


def _lines(traffic: Sequence[Traffic]) -> str:
    """Name the lines with the most calls: ``4× train.py:12, train.py:14``."""
    told = [f"{one.calls}× {one.line}" if one.calls > 1 else one.line for one in traffic]
    return format_names(told, _FEW_CARDS)


def compute_bound(now: Prediction) -> float | None:
    """Return the share of the roofline time in operators whose arithmetic takes longer than their bytes.

    An operator without FLOPs moves its bytes at the memory's bandwidth, so the largest such operator shows the
    bandwidth. None if there is no such operator.
    """
    moving = max((one for one in now.costs if not one.flops), key=lambda one: one.bytes_moved, default=None)
    total_ns = sum(one.roofline_ns for one in now.costs)
    if moving is None or not moving.bytes_moved or not moving.roofline_ns or not total_ns:
        return None
    ns_per_byte = moving.roofline_ns / moving.bytes_moved
    rounding = 1.001
    computing = (one for one in now.costs if one.flops)
    longer = (one for one in computing if one.roofline_ns > rounding * one.bytes_moved * ns_per_byte)
    return sum(one.roofline_ns for one in longer) / total_ns


def intensity(flops: int, bytes_moved: int) -> str:
    """Format FLOPs per byte: ``193``, ``4.2``, ``12.3 k``; ``–`` if FLOPs or bytes are 0."""
    if not flops or not bytes_moved:
        return "–"
    value = flops / bytes_moved
    if value >= 9_999.5:
        return format_si(value)
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def first_to_checkpoint(now: Prediction) -> Checkpoint | None:
    """Return the innermost module of repeated layers that has at least half of the bytes saved for backward.

    None if there is no such module, or if the case fits (or its fit is unknown) and activations are not the largest
    kind at the peak.
    """
    is_short = now.fit is not None and not now.fit.fits
    if not is_short and max(now.composition, key=lambda kind: now.composition[kind], default="") != "activations":
        return None
    layered = [one for one in now.saved if "*" in one.module and one.size_bytes]
    module = _innermost(layered, now.saved_bytes)
    if not module or "*" not in module:
        return None
    inside = [one for one in layered if _is_in(one.module, module)]
    layers = max((many for stack, many in now.layers.items() if f"{module}.".startswith(f"{stack}.*.")), default=1)
    kept_bytes = sum(one.size_bytes for one in inside)
    frees_bytes = kept_bytes * (layers - 1) // layers
    return Checkpoint(module, inside[0].line, frees_bytes, now.peak_bytes) if frees_bytes else None


def _remedies(now: Prediction, fit: Fit) -> str:
    told = {name: f"{name} ({format_bytes(peak)})" for name, peak in fit.remedies.items()}
    enough = [told[name] for name, peak in fit.remedies.items() if peak + now.workspace_bytes <= fit.room_bytes]
    others = [text for text in told.values() if text not in enough]
    if not enough:
        return f"would not fit with {' nor '.join(others)}"
    return f"would fit with {', '.join(enough)}" + (f"; not with {', '.join(others)}" if others else "")


def _cards(fit: Fit) -> str:
    """Name the GPUs that a case fits. A case that fits one GPU fits every GPU with more room."""
    if not fit.fits_on:
        largest = max(fit.rooms, key=lambda name: fit.rooms[name], default=None)
        has = f": {largest} has {format_bytes(fit.rooms[largest])}" if largest is not None else ""
        return f"fits no card{has}"
    if len(fit.fits_on) == len(fit.rooms):
        return f"fits all {len(fit.rooms)} cards"
    if len(fit.fits_on) <= _FEW_CARDS:
        return f"fits only {', '.join(fit.fits_on)}"
    if set(fit.fits_on) <= fit.rooms.keys():
        smallest = min(fit.fits_on, key=lambda name: fit.rooms[name])
        return f"fits {smallest} and larger"
    return f"fits {format_names(fit.fits_on, 4)}"


def _innermost(parts: Sequence[PeakPart | SavedTensors], total: int) -> str:
    inside = Counter[str]()
    for part in parts:
        for module in accumulate(part.module.split(".") if part.module else (), "{}.{}".format):
            inside[module] += part.size_bytes
    most = [module for module, size in inside.items() if size and 2 * size >= total]
    return max(most, key=lambda module: (module.count("."), inside[module]), default="")


def _is_in(module: str, outer: str) -> bool:
    return not outer or f"{module}.".startswith(f"{outer}.")
