"""How many bytes of asynchronous copies a loop has in flight: whether its stages can hide the memory's latency. Pure.

``LDGSTS`` copies from global to shared memory (PTX: ``cp.async``), ``LDGDEPBAR`` ends a group of copies and
``DEPBAR.LE SB0, N`` waits for all groups but the last N (PTX ISA, ``cp.async.commit_group`` and ``wait_group``).
"""

from __future__ import annotations

from collections.abc import Sequence

from perflab.compiled.machine.disassembly import Instruction
from perflab.compiled.machine.kinds import Kind, bytes_of, kind_of

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
