"""What perflab records of a kernel's machine code: the counts, the bound and the copies of each loop; in words.

Copies in flight tell whether a loop's stages can hide the memory's latency. ``LDGSTS`` copies from global to shared
memory (PTX: ``cp.async``), ``LDGDEPBAR`` ends a group of copies and ``DEPBAR.LE SB0, N`` waits for all groups but the
last N (PTX ISA, ``cp.async.commit_group`` and ``wait_group``).
"""

from __future__ import annotations

from collections.abc import Sequence

from perflab.base.data import changed
from perflab.base.gpu_names import Arch
from perflab.compiled.machine.bound import bound_of
from perflab.compiled.machine.disassembly import Function, Instruction
from perflab.compiled.machine.kinds import Kind, bytes_of, counts_of, kind_of
from perflab.compiled.machine.loops import Loop, loops_of, whole_of
from perflab.compiled.machine.pipes import PIPES, Pipes
from perflab.results.compiled import LoopCounts

_THREADS = 32
_MOST_GROUPS = 64
"""The iterations that are followed: a wait leaves 63 groups at most, so what is in flight has settled by then."""


def copied_bytes(loop: Sequence[Instruction], num_warps: int) -> int:
    """Return the bytes that a block's iteration copies at most; predicates may switch copies off."""
    return sum(map(_bytes, loop)) * num_warps * _THREADS


def most_in_flight_bytes(loop: Sequence[Instruction], num_warps: int) -> int:
    """Return the most bytes of a block's copies that are in flight at once; 0 if it is not known.

    It is not known for loops that wait for no group, and for those with other loads of global memory: TMA's sizes do
    not stand in the code, and a register may be waited for anywhere.
    """
    kinds = {kind_of(one) for one in loop}
    wanted = [one for one in loop if _bytes(one) or one.name == "LDGDEPBAR" or _is_wait(one)]
    if not any(map(_is_wait, wanted)) or kinds & {Kind.GLOBAL_LOAD, Kind.TMA}:
        return 0
    groups: list[int] = []
    begun = most = 0
    for one in wanted * _MOST_GROUPS:
        if one.name == "LDGDEPBAR":
            groups.append(begun)
            begun = 0
        elif _is_wait(one):
            groups = groups[max(0, len(groups) - int(one.operands[1], 16)) :]
        else:
            begun += _bytes(one)
            most = max(most, sum(groups) + begun)
    return most * num_warps * _THREADS


def _is_wait(one: Instruction) -> bool:
    return one.name == "DEPBAR" and one.operands[0] == "SB0"


def _bytes(one: Instruction) -> int:
    return bytes_of(one) if kind_of(one) is Kind.COPY and not one.is_never_executed else 0


_SMALL = 16
"""Loops of fewer instructions set something up, or wait; they are left out."""


def read_loops(kernel: Function, *, num_warps: int, blocks: int) -> list[LoopCounts]:
    """Return the innermost loops of a kernel, by address; its whole code if it has none.

    Args:
        kernel: the kernel's own code, without that of functions that it calls.
        num_warps: the warps of a block.
        blocks: how many blocks are on a multiprocessor at once; 0 counts as one.
    """
    loops = loops_of(kernel, _SMALL)
    if not loops:
        return [changed(_read(kernel, whole_of(kernel), num_warps, blocks), is_all=True, in_flight_bytes=0)]
    return [_read(kernel, loop, num_warps, blocks) for loop in loops]


def _read(kernel: Function, loop: Loop, num_warps: int, blocks: int) -> LoopCounts:
    pipes = PIPES.get(kernel.arch)
    # Where warps trade registers, each kind of warp runs loops of its own, and nothing says which.
    specialised = any(one.name == "USETMAXREG" for one in kernel.instructions)
    if pipes is None or specialised:
        return LoopCounts(issues=counts_of(kernel.instructions, loop.instructions))
    return changed(
        bound_of(kernel.instructions, loop, pipes, num_warps=num_warps, blocks=blocks),
        copied_bytes=copied_bytes(loop.instructions, num_warps),
        in_flight_bytes=most_in_flight_bytes(loop.instructions, num_warps) * max(1, blocks),
    )


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
        rate = pipes.flops_per_second(loop)
        told += f": at most {100 * loop.share_of_peak:.0f} % of the peak, {rate / 1e12:,.0f} TFLOP/s on {pipes.name}"
    return told
