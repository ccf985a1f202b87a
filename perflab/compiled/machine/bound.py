"""The least time of a loop's iteration on a multiprocessor, from its machine code. Pure; nothing here is measured.

Each pipe of a multiprocessor does so much a cycle (``pipes.py``), so an iteration of a block takes at least the work
of its warps for each pipe, divided by that. A warp issues in order, one instruction a cycle, and waits for operands;
the time of one warp's iteration, divided by the blocks that are on a multiprocessor at once, is one more bound. What
is greatest binds. Real kernels are slower: conflicts, waits for memory and for other warps are left out.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from perflab.compiled.machine.disassembly import Instruction
from perflab.compiled.machine.kinds import Kind, Product, Use, bytes_of, counts_of, kind_of, product_of, use_of
from perflab.compiled.machine.loops import Loop
from perflab.compiled.machine.pipes import Pipe, Pipes
from perflab.results.compiled import LoopCounts

_WARP = 32
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
    products = [step for step in steps if step.product is not None and _is_certain(step, certain)]
    flops = sum(_block_flops(step, num_warps) for step in products)
    if products:
        cycles[Pipe.TENSOR] = sum(_block_flops(step, num_warps) / pipes.tensor_flops(step.one) for step in products)
    for step in always:
        pipe = pipes.pipe_of(step.one, step.kind)
        # A predicate may switch it off: then it is issued, and takes no pipe.
        if pipe is not None and step.kind is not Kind.TENSOR and not step.one.predicate:
            cycles[pipe] = cycles.get(pipe, 0.0) + num_warps * _WARP / pipes.results(step.one, step.kind)
    of_warps = sum(_shared_bytes(step) for step in always) * num_warps * _WARP
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


def _is_certain(step: _Step, certain: Set[int]) -> bool:
    return step.one.address in certain or (step.product is not None and step.product.warps == 0)


def _shared_bytes(step: _Step) -> int:
    """Return the bytes of a thread in an access to shared memory that no broadcast can shorten."""
    return bytes_of(step.one) if step.one.name in ("LDSM", "STSM") and not step.one.predicate else 0


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
