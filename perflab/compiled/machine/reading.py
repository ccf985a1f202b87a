"""What perflab records of a kernel's machine code: the counts and the bound of each loop."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.base.data import changed
from perflab.compiled.machine.bound import bound_of
from perflab.compiled.machine.copies import copied_bytes, most_in_flight_bytes
from perflab.compiled.machine.disassembly import Function
from perflab.compiled.machine.kinds import counts_of
from perflab.compiled.machine.loops import Loop, loops_of, whole_of
from perflab.compiled.machine.pipes import PIPES
from perflab.results.compiled import LoopCounts

_SMALL = 16
"""Loops of fewer instructions set something up, or wait; they are left out."""


def read_loops(functions: Sequence[Function], *, num_warps: int, blocks: int) -> list[LoopCounts]:
    """Return the innermost loops of a kernel, by address; its whole code if it has none.

    Args:
        functions: the kernel first, then functions that it calls.
        num_warps: the warps of a block.
        blocks: how many blocks are on a multiprocessor at once; 0 counts as one.
    """
    kernel = functions[0]
    loops = loops_of(kernel, _SMALL)
    if not loops:
        return [changed(_read(kernel, whole_of(kernel), num_warps, blocks), is_all=True, in_flight_bytes=0)]
    return [_read(kernel, loop, num_warps, blocks) for loop in loops]


def _read(kernel: Function, loop: Loop, num_warps: int, blocks: int) -> LoopCounts:
    counts = counts_of(kernel.instructions, loop.instructions)
    pipes = PIPES.get(kernel.arch)
    # Where warps trade registers, each kind of warp runs loops of its own, and nothing says which.
    specialised = any(one.name == "USETMAXREG" for one in kernel.instructions)
    if pipes is None or specialised:
        return LoopCounts(issues=counts)
    bound = bound_of(kernel.instructions, loop, pipes, num_warps=num_warps, blocks=blocks)
    return LoopCounts(
        issues=counts,
        copied_bytes=copied_bytes(loop.instructions, num_warps),
        in_flight_bytes=most_in_flight_bytes(loop.instructions, num_warps) * max(1, blocks),
        cycles={str(name): round(value, 1) for name, value in bound.cycles.items()},
        flops=bound.flops,
        share_of_peak=round(bound.share_of_peak, 3),
    )
