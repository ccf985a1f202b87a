"""The loops of a kernel: basic blocks, dominators and natural loops (Aho et al., *Compilers*, 9.6). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from perflab.compiled.machine.disassembly import INSTRUCTION_BYTES, Function, Instruction

_ENDS = ("EXIT", "RET", "BRX", "BRXU", "JMX", "KILL")
_WAITS = ("SYNCS", "NANOSLEEP", "BRA", "NOP", "YIELD", "DEPBAR", "WARPSYNC", "BSYNC", "BSSY")


@dataclass(frozen=True)
class Loop:
    """An innermost loop of a kernel.

    Blocks that a loop visits in no or in some iterations are apart: the way around a barrier that is not yet passed,
    or what one warp alone does.
    """

    start: int
    """The address of its first instruction."""
    always: tuple[Instruction, ...]
    """The instructions that each iteration issues, in order."""
    sometimes: tuple[Instruction, ...]
    """The instructions that an iteration may skip."""

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions of the loop, by address."""
        return tuple(sorted((*self.always, *self.sometimes), key=lambda one: one.address))


@dataclass(frozen=True)
class _Block:
    instructions: tuple[Instruction, ...]
    after: tuple[int, ...]
    """The numbers of the blocks that may follow."""


def loops_of(function: Function, smallest: int = 1) -> list[Loop]:
    """Return the innermost loops of a function by address.

    Loops that only wait are left out, and those of fewer instructions than ``smallest``, as if they were no loops.
    """
    blocks = _blocks(function)
    dominators = _dominators(blocks)
    bodies: dict[int, set[int]] = {}
    latches: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {number: [] for number in range(len(blocks))}
    for number, block in enumerate(blocks):
        for follower in block.after:
            before[follower].append(number)
    for number, block in enumerate(blocks):
        for head in block.after:
            if number in dominators and head in dominators[number]:
                bodies.setdefault(head, {head}).update(_reaching(number, head, before))
                latches.setdefault(head, []).append(number)
    real = {
        head: body
        for head, body in bodies.items()
        if not all(one.name in _WAITS for number in body for one in blocks[number].instructions)
        and sum(len(blocks[number].instructions) for number in body) >= smallest
    }
    found = []
    for head, body in sorted(real.items()):
        if any(other in body for other in real if other != head):
            continue
        surely = [one for one in sorted(body) if all(one in dominators[latch] for latch in latches[head])]
        rest = sorted(body.difference(surely))
        start = blocks[head].instructions[0].address
        found.append(Loop(start, _joined(blocks, surely), _joined(blocks, rest)))
    return found


def whole_of(function: Function) -> Loop:
    """Return the code that can be reached, as one iteration of a block that does not leave early (``@P0 EXIT``)."""
    blocks = _blocks(function)
    dominators = _dominators(blocks)
    last = {number: blocks[number].instructions[-1] for number in dominators}
    ends = [number for number, one in last.items() if one.name == "EXIT" and not one.predicate]
    surely = [number for number in sorted(dominators) if ends and all(number in dominators[end] for end in ends)]
    rest = sorted(set(dominators).difference(surely))
    return Loop(0, _joined(blocks, surely), _joined(blocks, rest))


def _blocks(function: Function) -> list[_Block]:
    code = function.instructions
    leaders = {0}
    for number, one in enumerate(code):
        if one.target is not None:
            leaders.add(one.target // INSTRUCTION_BYTES)
        if one.target is not None or one.name in _ENDS:
            leaders.add(number + 1)
    starts = sorted(leader for leader in leaders if 0 <= leader < len(code))
    number_of = {start: number for number, start in enumerate(starts)}
    blocks = []
    for start, end in zip(starts, [*starts[1:], len(code)], strict=True):
        last = code[end - 1]
        # BRA.U has its condition among the operands.
        leaves = last.name in _ENDS or (last.name in ("BRA", "JMP") and len(last.operands) <= 1)
        after = [] if end not in number_of or (leaves and not last.predicate) else [number_of[end]]
        if last.target is not None and last.target // INSTRUCTION_BYTES in number_of:
            after.append(number_of[last.target // INSTRUCTION_BYTES])
        blocks.append(_Block(code[start:end], tuple(dict.fromkeys(after))))
    return blocks


def _dominators(blocks: Sequence[_Block]) -> Mapping[int, frozenset[int]]:
    """Return for each block that can be reached the blocks through which each way to it leads."""
    found: dict[int, frozenset[int]] = {0: frozenset({0})}
    waiting = [0]
    while waiting:
        number = waiting.pop()
        for follower in blocks[number].after:
            through = found[number] | {follower}
            known = found.get(follower)
            new = through if known is None else (known & found[number]) | {follower}
            if new != known:
                found[follower] = new
                waiting.append(follower)
    return found


def _reaching(latch: int, head: int, before: Mapping[int, Sequence[int]]) -> set[int]:
    found, waiting = set(), [latch]
    while waiting:
        number = waiting.pop()
        if number != head and number not in found:
            found.add(number)
            waiting += before[number]
    return found


def _joined(blocks: Sequence[_Block], numbers: Sequence[int]) -> tuple[Instruction, ...]:
    return tuple(one for number in numbers for one in blocks[number].instructions)
