"""Loops in words: what an iteration issues, and what bounds it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.base.gpu_names import Arch
from perflab.compiled.machine.pipes import PIPES, Pipes
from perflab.results.compiled import LoopCounts


def loop_lines(loops: Sequence[LoopCounts], arch: Arch) -> list[str]:
    """Return lines on the loops of a kernel: for each the bound, the cycles of each pipe, and the counts."""
    lines = []
    pipes = PIPES.get(arch) if isinstance(arch, int) else None
    for number, loop in enumerate(loops, start=1):
        name = "no loop" if loop.is_all else f"loop {number}"
        lines.append(f"{name}: {loop.total:,} instructions{_bound(loop, pipes)}")
        if loop.cycles:
            by_cycles = sorted(loop.cycles.items(), key=lambda item: -item[1])
            lines.append(f"  cycles at least: {', '.join(f'{name} {value:,.0f}' for name, value in by_cycles)}")
        if pipes is not None and loop.in_flight_bytes:
            lines.append(
                f"  copies: {loop.copied_bytes:,} B an iteration of a block, at most {loop.in_flight_bytes:,} B in "
                f"flight on a multiprocessor; memory's bandwidth needs {pipes.bandwidth_latency_bytes:,.0f} B at its "
                f"latency of {pipes.memory_latency} cycles"
            )
        counts = ", ".join(f"{kind.replace('_', ' ')} {count:,}" for kind, count in loop.issues.items())
        lines.append(f"  issues: {counts}")
    return lines


def _bound(loop: LoopCounts, pipes: Pipes | None) -> str:
    if pipes is None or not loop.cycles:
        return ""
    told = f", bound by {loop.limit}"
    if loop.flops:
        rate = loop.flops / loop.least_cycles * pipes.multiprocessors * pipes.clock_hz
        told += f": at most {100 * loop.share_of_peak:.0f} % of the peak, {rate / 1e12:,.0f} TFLOP/s on {pipes.name}"
    return told
