"""The registers that an instruction reads and writes, with the width of each operand. Pure.

Only what the text says is known: an operand names its first register, and its width follows from the operation (CUDA
Binary Utilities, and for products the fragments of the PTX ISA, "Matrix Fragments").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perflab.compiled.machine.disassembly import Instruction
from perflab.compiled.machine.kinds import Kind, Product, bytes_of, kind_of

_REGISTER = re.compile(r"(?<![A-Za-z0-9_.])(UR|UP|R|P)(\d+)(\.64)?")
_STORES = (Kind.SHARED_STORE, Kind.GLOBAL_STORE, Kind.COPY, Kind.BRANCH, Kind.BARRIER, Kind.WAIT, Kind.TMA)
_PREDICATES_ALONE = ("ISETP", "FSETP", "HSETP2", "DSETP", "PLOP3", "UISETP", "UPLOP3", "UFSETP", "FCHK", "ISETP3")
_CARRIES = ("IADD3", "LEA", "IMAD", "UIADD3", "ULEA", "UIMAD")
"""Operations whose carries are predicates behind the destination."""
_PREDICATE = re.compile(r"^U?P(\d|T)$")
_PAIRS = ("CS2R", "DADD", "DMUL", "DFMA", "FADD2", "FMUL2", "FFMA2")


@dataclass(frozen=True)
class Use:
    """The registers of an instruction by name: ``R12``, ``UR4``, ``P0``, ``UP1``."""

    reads: frozenset[str]
    writes: frozenset[str]


def use_of(one: Instruction, product: Product | None) -> Use:
    """Return what an instruction reads and writes; ``product`` is its tensor-core product, if it is one."""
    kind = kind_of(one)
    operands = list(one.operands)
    reads = _named(one.predicate, 1)
    writes: set[str] = set()
    number = 0
    if kind not in _STORES and one.name not in ("STL", "STTM"):
        most = 2 if one.name in _PREDICATES_ALONE else len(operands)
        while number < min(most, len(operands)) and _PREDICATE.match(operands[number]):
            writes |= _named(operands[number], 1)
            number += 1
        is_one = number < len(operands) and not operands[number].startswith(("[", "desc[", "tmem", "gdesc", "c["))
        if one.name not in _PREDICATES_ALONE and is_one:
            writes |= _named(operands[number], _width(one, kind, product, 0))
            number += 1
        while one.name in _CARRIES and number < len(operands) and _PREDICATE.match(operands[number]):
            writes |= _named(operands[number], 1)
            number += 1
    # One descriptor names both operands of a warp group's product if neither is in registers.
    skipped = product is not None and product.warps == 4 and operands[1].startswith("gdesc[")
    for place, operand in enumerate(operands[number:], start=1):
        reads |= _named(operand, _width(one, kind, product, place + (skipped and place > 1)))
    return Use(frozenset(reads), frozenset(writes))


def _named(operand: str, width: int) -> set[str]:
    found = set()
    inside = operand.startswith(("[", "desc[", "gdesc[", "tmem[", "idesc[", "c["))
    for bank, first, pair in _REGISTER.findall(operand):
        wide = 2 if pair or operand.startswith("gdesc[") else 1 if inside or bank in ("P", "UP") else width
        found |= {f"{bank}{int(first) + offset}" for offset in range(wide)}
    return found


def _width(one: Instruction, kind: Kind, product: Product | None, place: int) -> int:
    """Return how many registers an operand has; place 0 is the destination, and sources count from 1."""
    if product is not None:
        return _of_product(one, product, place)
    if kind in (Kind.SHARED_LOAD, Kind.GLOBAL_LOAD, Kind.SHARED_STORE, Kind.GLOBAL_STORE, Kind.LOCAL):
        return max(1, bytes_of(one) // 4)
    if kind is Kind.TENSOR_MEMORY:
        return next((int(part[1:]) for part in one.opcode.split(".") if re.match(r"^x\d+$", part)), 1)
    if one.name in _PAIRS and "32" not in one.modifiers:
        return 2
    if one.name == "IMAD" and "WIDE" in one.modifiers and place in (0, 3):
        return 2
    return 1


def _of_product(one: Instruction, product: Product, place: int) -> int:
    """Return how many registers a fragment has in each thread of the warps that share the product."""
    threads = 32 * max(1, product.warps)
    if place in (0, 3):
        size = 2 if "F16" in one.modifiers and "F32" not in one.modifiers else 4
        return max(1, product.rows * product.columns * size // (4 * threads))
    short = product.inner >= 32 or one.name.startswith(("IMMA", "QMMA"))
    size = 4 if "TF32" in one.modifiers else 1 if short else 2
    elements = product.rows * product.inner if place == 1 else product.inner * product.columns
    return max(1, elements * size // (4 * threads))
