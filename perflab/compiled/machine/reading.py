"""What perflab records of a kernel's machine code: the counts, the bound and the copies of each loop; in words.

The bound is the least time of an iteration on a multiprocessor; nothing here is measured. Each pipe of a multiprocessor
does so much a cycle (``pipes.py``), so an iteration of a block takes at least the work of its warps for each pipe,
divided by that. A warp issues in order, one instruction a cycle, and waits for operands; the time of one warp's
iteration, divided by the blocks that are on a multiprocessor at once, is one more bound. What is greatest binds. Real
kernels are slower: conflicts, waits for memory and for other warps are left out.

Copies in flight tell whether a loop's stages can hide the memory's latency. ``LDGSTS`` copies from global to shared
memory (PTX: ``cp.async``), ``LDGDEPBAR`` ends a group of copies and ``DEPBAR.LE SB0, N`` waits for all groups but the
last N (PTX ISA, ``cp.async.commit_group`` and ``wait_group``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perflab.base.data import changed
from perflab.base.gpu_names import Arch
from perflab.compiled.machine.disassembly import Function, Instruction
from perflab.compiled.machine.kinds import Kind, Product, Use, bytes_of, counts_of, kind_of, product_of, use_of
from perflab.compiled.machine.loops import Loop, loops_of, whole_of
from perflab.compiled.machine.pipes import PIPES, Pipe, Pipes
from perflab.results.compiled import LoopCounts

_THREADS = 32
_MOST_GROUPS = 64
"""The iterations that are followed: a wait leaves 63 groups at most, so what is in flight has settled by then."""
_SETTLED = 8
"""Iterations of one warp that are followed; differences between the last two have settled by then."""


@dataclass(frozen=True)
class _Step:
    """An instruction of a loop with what the bound needs to know of it."""

    one: Instruction
    kind: Kind
    product: Product | None
    use: Use


def bound_of(code: Sequence[Instruction], loop: Loop, pipes: Pipes, *, num_warps: int, blocks: int) -> LoopCounts:
    """Return the counts of a loop, with the bound of its time.

    Args:
        code: the kernel's instructions.
        loop: the loop.
        pipes: the data sheet of the architecture.
        num_warps: the warps of a block, which all run the loop.
        blocks: how many blocks are on a multiprocessor at once.
    """
    steps = [_step(code, one) for one in loop.instructions]
    certain = {one.address for one in loop.always}
    always = [step for step in steps if step.one.address in certain]
    cycles: dict[str, float] = {}
    # One thread issues a product of Blackwell's for its block, and others go around: such products are certain, too.
    products = [step for step in steps if step.product and (step.one.address in certain or step.product.warps == 0)]
    flops = sum(_block_flops(step, num_warps) for step in products)
    if products:
        cycles[Pipe.TENSOR] = sum(_block_flops(step, num_warps) / pipes.tensor_flops(step.one) for step in products)
    for step in always:
        pipe = pipes.pipe_of(step.one, step.kind)
        # A predicate may switch it off: then it is issued, and takes no pipe.
        if pipe is not None and step.kind is not Kind.TENSOR and not step.one.predicate:
            cycles[pipe] = cycles.get(pipe, 0.0) + num_warps * _THREADS / pipes.results(step.one, step.kind)
    # Accesses of a thread that no broadcast can shorten.
    moved = (step.one for step in always if step.one.name in ("LDSM", "STSM") and not step.one.predicate)
    of_warps = sum(map(bytes_of, moved)) * num_warps * _THREADS
    shared = of_warps + sum(_operand_bytes(step, num_warps) for step in products)
    if shared:
        cycles[Pipe.SHARED] = shared / pipes.shared_bytes
    cycles["issue"] = num_warps * len(always) / pipes.schedulers
    cycles["dependencies"] = _alone(always, pipes) / max(1, blocks)
    return LoopCounts(
        issues=counts_of(code, loop.instructions),
        cycles={str(name): round(value, 1) for name, value in cycles.items()},
        flops=int(flops),
        share_of_peak=round(cycles.get(Pipe.TENSOR, 0.0) / max(cycles.values()), 3),
    )


def _step(code: Sequence[Instruction], one: Instruction) -> _Step:
    product = product_of(code, one.address // 16)
    return _Step(one, kind_of(one), product, use_of(one, product))


def _times(product: Product, num_warps: int) -> float:
    """Return how many times a block issues a product that each of its warps (or its warp group) issues once."""
    return num_warps / product.warps if product.warps else 1.0


def _block_flops(step: _Step, num_warps: int) -> float:
    return step.product.flops * _times(step.product, num_warps) if step.product is not None else 0.0


def _operand_bytes(step: _Step, num_warps: int) -> float:
    """Return the bytes that a block's product reads from shared memory: Hopper's and Blackwell's, by descriptors."""
    product, described = step.product, sum(part.startswith("gdesc[") for part in step.one.operands)
    if product is None or not described:
        return 0.0
    size = 1 if product.inner >= 32 else 2
    columns = size * product.columns * product.inner
    # One descriptor register names both operands of a product of Hopper's whose rows are not in registers.
    both = step.one.name in ("HGMMA", "QGMMA", "IGMMA") and not step.one.operands[1].startswith("R")
    rows = size * product.rows * product.inner * (both or described > 1)
    return (rows + columns) * _times(product, num_warps)


def _alone(steps: Sequence[_Step], pipes: Pipes) -> float:
    """Return the cycles of an iteration of one warp that has the multiprocessor for itself.

    A warp issues in order, at most one instruction a cycle, each when its operands are there; a pipe takes its
    instructions one after the other. Waits for products of warp groups are waits for all of them but the number named.
    """
    ready: dict[str, float] = {}
    free: dict[str, float] = {}
    groups: list[float] = []
    open_group = 0.0
    now, ends = 0.0, []
    for _ in range(_SETTLED):
        for step in steps:
            now = max([now + 1, *(ready[name] for name in step.use.reads if name in ready)])
            if step.one.name == "WARPGROUP" and "DEPBAR" in step.one.modifiers:
                left = int(step.one.operands[-1], 16)
                done = groups[: max(0, len(groups) - left)]
                now = max([now, *done])
                groups = groups[len(done) :]
                continue
            pipe = pipes.pipe_of(step.one, step.kind)
            begun = now
            if pipe is not None:
                begun = max(now, free.get(pipe, 0.0))
                free[pipe] = begun + pipes.interval(step.one, step.kind, step.product)
            done_at = begun + pipes.latency(step.one, step.kind, step.product)
            if step.product is not None and step.product.warps == 4:
                open_group = max(open_group, done_at)
                if "gsb0" in step.one.operands:  # the last of its group
                    groups.append(open_group)
                continue
            for name in step.use.writes:
                ready[name] = done_at
        ends.append(now)
    return ends[-1] - ends[-2]


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
