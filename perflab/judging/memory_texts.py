"""Describes cases that ran out of memory, with ways to free some of it, and memory that calls keep. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from perflab.base.user_lines import with_callers
from perflab.results.measurement import Leak, OutOfMemory
from perflab.results.peak import MADE_BY, PeakPart
from perflab.units import format_bytes, format_count

MOST = 5
"""Number of groups of live memory to list; the results file has all of them."""
_WORTH = 0.05
"""Share of the live memory that a remedy must free to be reported."""
FORWARD, OPTIMIZER = f"{MADE_BY}forward", f"{MADE_BY}optimizer"
_MOST = 3
"""Number of places to name; the results file has all of them."""


def out_of_memory_texts(found: OutOfMemory) -> list[str]:
    """Return sentences: the bytes asked for and by which code, the memory alive, and ways to free some of it."""
    asked = f"out of memory: {format_bytes(found.asked_bytes)} asked for" if found.asked_bytes is not None else ""
    by = place(found.asked_by) if found.asked_by is not None else ""
    texts = [f"{asked or 'out of memory'}{f', by {by}' if by else ''}"]
    if found.alive:
        total = sum(part.size_bytes for part in found.alive)
        sums = _sums(found.alive, lambda part: f"{part.category}{f' in {part.module}' if part.module else ''}")
        listed = [f"{format_bytes(size)} {name}" for name, size in sums[:MOST] if size > 0]
        rest = total - sum(size for _, size in sums[:MOST] if size > 0)
        listed += [f"{format_bytes(rest)} others"] if rest > 0 else []
        texts.append(f"alive then: {format_bytes(total)}, of which {', '.join(listed)}")
        texts += [text for text, freed in _remedies(found.alive) if freed > _WORTH * total]
    if found.cached_bytes and found.asked_bytes is not None and found.cached_bytes > found.asked_bytes:
        size = format_bytes(found.cached_bytes)
        texts.append(
            f"{size} were reserved but free, in pieces that are too small; "
            "set PYTORCH_ALLOC_CONF=expandable_segments:True"
        )
    if found.remedies:
        texts.append(
            f"--perf-predict shows the peak with {' and with '.join(found.remedies)}, which perf.fits declares"
        )
    return texts


def _remedies(alive: Sequence[PeakPart]) -> Iterator[tuple[str, int]]:
    """Yield ways to free some of the live memory, each with the most bytes that it would free."""
    forward = [part for part in alive if part.category == FORWARD and part.module]
    sums = _sums(forward, lambda part: part.module)
    if sums:
        module, size = sums[0]
        yield f"checkpointing {module} would free up to {format_bytes(size)} of it", size
    size = sum(part.size_bytes for part in alive if part.category == "gradients")
    began = any(part.category != FORWARD and part.category.startswith(MADE_BY) for part in alive)
    if size > 0 and not began:
        yield f"zero_grad() before the forward would free {format_bytes(size)} of it: gradients of the last step", size
    size = sum(
        part.size_bytes for part in alive if part.category == OPTIMIZER and part.operator.startswith("aten::_foreach")
    )
    yield f"an optimizer with foreach=False, or fused=True, would free up to {format_bytes(size)} of it", size


def _sums(parts: Iterable[PeakPart], name_of: Callable[[PeakPart], str]) -> list[tuple[str, int]]:
    sums: dict[str, int] = defaultdict(int)
    for part in parts:
        sums[name_of(part)] += part.size_bytes
    return sorted(sums.items(), key=lambda item: -item[1])


def place(part: PeakPart) -> str:
    """Format the operator, module and line that asked for blocks; empty if neither operator nor line is known."""
    where = f" in {part.module}" if part.module else ""
    line = f" ({with_callers(part.line, part.stack)})" if part.line else ""
    return f"{part.operator or 'code'}{where}{line}" if part.operator or part.line else ""


def leak_text(leak: Leak) -> str:
    """Format a leak.

    ``memory held grows in each of 5 calls, by 4.00 KiB a call: 4.00 KiB of aten::mul (train.py:12); kept ...``.
    """
    grown_bytes = sum(leak.grown_bytes) // len(leak.grown_bytes)
    kept_bytes = max(grown_bytes, sum(part.size_bytes for part in leak.kept))  # with graphs, which Python does not see
    calls = format_count(len(leak.grown_bytes), "call")
    text = f"memory held grows in each of {calls}, by {format_bytes(kept_bytes)} a call"
    said = [f"{format_bytes(part.size_bytes)} of {place(part) or 'unknown origin'}" for part in leak.kept[:_MOST]]
    more = len(leak.kept) - _MOST
    said += [f"{format_count(more, 'smaller part')}"] if more > 0 else []
    keeper = next(filter(None, (one.place for one in leak.keepers)), "")
    return f"{text}{': ' * bool(said)}{', '.join(said)}{f'; kept {keeper}' if keeper else ''}"
