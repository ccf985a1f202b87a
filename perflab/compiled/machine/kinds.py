"""Instructions: their kind by opcode, the work of tensor-core products, the registers that they read and write. Pure.

Loops are counted by kind. Names of opcodes: CUDA Binary Utilities, "Instruction Set Reference" (Ampere, Hopper,
Blackwell). Products of Blackwell's tensor cores take their shape from a descriptor (PTX ISA, "Instruction descriptor").

Of registers only what the text says is known: an operand names its first register, and its width follows from the
operation (CUDA Binary Utilities, and for products the fragments of the PTX ISA, "Matrix Fragments").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perflab.compiled.machine.disassembly import Instruction


class Kind(StrEnum):
    """A kind of instruction; the values are the names of counts in baselines and reports."""

    TENSOR = "tensor_products"
    EXPONENTIAL = "exponentials"
    SPECIAL = "special_functions"
    FLOAT = "float_arithmetic"
    PACKED_FLOAT = "packed_float_arithmetic"
    HALF = "half_arithmetic"
    DOUBLE = "double_arithmetic"
    COMPARE = "float_comparisons"
    CONVERSION = "conversions"
    INTEGER = "integer_arithmetic"
    UNIFORM = "uniform_arithmetic"
    MOVE = "moves"
    SHUFFLE = "shuffles"
    SHARED_LOAD = "shared_loads"
    SHARED_STORE = "shared_stores"
    TENSOR_MEMORY = "tensor_memory"
    GLOBAL_LOAD = "global_loads"
    GLOBAL_STORE = "global_stores"
    ATOMIC = "atomics"
    COPY = "async_copies"
    TMA = "tma"
    LOCAL = "local_memory"
    CONSTANT = "constant_loads"
    BARRIER = "barriers"
    WAIT = "waits"
    BRANCH = "branches"
    NOTHING = "nothing"
    OTHER = "others"


_BY_NAME: dict[Kind, str] = {
    Kind.TENSOR: "HMMA HGMMA IMMA IGMMA QGMMA QMMA OMMA DMMA BMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA",
    Kind.FLOAT: "FADD FMUL FFMA FSWZADD FADD32I FMUL32I FFMA32I",
    Kind.PACKED_FLOAT: "FADD2 FMUL2 FFMA2",
    Kind.HALF: "HADD2 HMUL2 HFMA2 HSET2 HSETP2 HMNMX2 HADD2_32I HMUL2_32I HFMA2_32I VHMNMX",
    Kind.DOUBLE: "DADD DMUL DFMA DSETP DMNMX",
    Kind.COMPARE: "FMNMX FMNMX3 FSETP FSEL FSET FCHK",
    Kind.CONVERSION: "F2F F2FP F2I F2IP I2F I2FP I2I I2IP FRND",
    Kind.INTEGER: (
        "IADD3 IADD IMAD LEA LOP3 LOP SHF SHL SHR ISETP ISET IMNMX VIMNMX VIMNMX3 VIADD VIADDMNMX IABS SGXT PLOP3 BMSK "
        "FLO POPC BREV IDP IDP4A XMAD VABSDIFF VABSDIFF4 LEPC"
    ),
    Kind.UNIFORM: (
        "UIADD3 UIMAD ULEA ULOP3 ULOP USHF USGXT UISETP USEL UPLOP3 UFLO UPOPC UBREV UBMSK UPRMT UMOV ULEPC UVIADD "
        "UVIMNMX UIADD3_64 UFADD UFMUL UFFMA UFSEL UFSETP UF2FP UI2F UF2I UP2UR UR2UP UIABS UFMNMX UFRND UVIRTCOUNT "
        "UI2FP UF2F USETMAXREG UCGABAR_ARV UCGABAR_WAIT"
    ),
    Kind.MOVE: "MOV MOV32I SEL PRMT CS2R S2R S2UR R2UR UR2R P2R R2P MOVM CS2UR R2B B2R AL2P P2UR R2UP",
    Kind.SHUFFLE: "SHFL VOTE VOTEU MATCH REDUX CREDUX",
    Kind.SHARED_LOAD: "LDS LDSM",
    Kind.SHARED_STORE: "STS STSM STAS",
    Kind.TENSOR_MEMORY: "LDTM STTM UTCCP UTCSHIFT LDT LDTMV",
    Kind.GLOBAL_LOAD: "LDG LD TEX TLD TLD4 SULD CCTL LDGMC",
    Kind.GLOBAL_STORE: "STG ST SUST",
    Kind.ATOMIC: "ATOM ATOMG ATOMS RED REDG UTCATOMSWS SUATOM REDAS",
    Kind.COPY: "LDGSTS",
    Kind.TMA: "UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP UBLKRED UBLKPF",
    Kind.LOCAL: "LDL STL",
    Kind.CONSTANT: "LDC LDCU ULDC",
    Kind.BARRIER: "BAR WARPSYNC SYNCS UTCBAR UTMACMDFLUSH ELECT WARPGROUP WARPGROUPSET ACQBULK PREEXIT ERRBAR",
    Kind.WAIT: "DEPBAR LDGDEPBAR MEMBAR FENCE LDTMWAIT CGAERRBAR ARRIVES NANOSLEEP",
    Kind.BRANCH: "BRA BRX BRXU JMP JMX CALL RET EXIT BSSY BSYNC BREAK BMOV KILL BPT RPCMOV YIELD WARPSYNC.ALL",
    Kind.NOTHING: "NOP",
}
_KINDS = {name: kind for kind, names in _BY_NAME.items() for name in names.split()}
_SHAPE_OF_MMA = {"884": (8, 8, 4), "1684": (16, 8, 4), "1688": (16, 8, 8), "16816": (16, 8, 16), "16832": (16, 8, 32)}
_SHAPE = re.compile(r"^(\d+)x(\d+)x(\d+)$")
_IN_DESCRIPTOR = {"UTCHMMA": 16, "UTCQMMA": 32, "UTCIMMA": 32}
"""The inner dimension of a product by opcode, 32 bytes of operands of 16 and of 8 bits."""


def kind_of(one: Instruction) -> Kind:
    """Return what an instruction does. Copies by multiply-add (``IMAD.MOV``) are moves, not arithmetic."""
    if one.name == "MUFU":
        return Kind.EXPONENTIAL if "EX2" in one.modifiers else Kind.SPECIAL
    if one.name == "IMAD" and "MOV" in one.modifiers:
        return Kind.MOVE
    return _KINDS.get(one.name, Kind.OTHER)


@dataclass(frozen=True)
class Product:
    """A tensor-core product: (rows, columns, inner), and how many warps issue the one product together."""

    rows: int
    columns: int
    inner: int
    warps: int
    """1 for a warp's own; 4 if a warp group issues it together; 0 if one thread does for the whole block."""

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.columns * self.inner

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.inner}"


def product_of(code: Sequence[Instruction], at: int) -> Product | None:
    """Return the tensor-core product of the instruction at a position of the code; None if it is none or unknown.

    Blackwell's shape is looked for in the code before, where a constant was moved into the register of the descriptor.
    """
    one = code[at]
    if kind_of(one) is not Kind.TENSOR:
        return None
    for part in one.opcode.split(".")[1:]:
        if part in _SHAPE_OF_MMA:
            rows, columns, inner = _SHAPE_OF_MMA[part]
            return Product(rows, columns, inner, warps=1)
        if match := _SHAPE.match(part):
            rows, columns, inner = map(int, match.groups())
            return Product(rows, columns, inner, warps=4)
    if one.name in _IN_DESCRIPTOR and (bits := _descriptor(code, at)) is not None:
        columns, rows = 8 * (bits >> 17 & 0x3F), 16 * (bits >> 24 & 0x1F)
        return Product(rows, columns, _IN_DESCRIPTOR[one.name], warps=0)
    return None


def _descriptor(code: Sequence[Instruction], at: int) -> int | None:
    register = next((part[6:-1] for part in code[at].operands if part.startswith("idesc[")), None)
    for before in reversed(code[:at]):
        if before.operands and before.operands[0] == register:
            is_constant = before.name == "UMOV" and before.operands[-1].startswith("0x")
            return int(before.operands[-1], 16) if is_constant else None
    return None


def bytes_of(one: Instruction) -> int:
    """Return how many bytes a thread moves in an access to memory, from the width among its modifiers; else 4."""
    if one.name in ("LDSM", "STSM"):
        return 4 * next((int(part) for part in reversed(one.opcode.split(".")) if part in ("1", "2", "4")), 1)
    widths = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
    return next((widths[part] for part in reversed(one.opcode.split(".")) if part in widths), 4)


_WIDE = (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.COPY, Kind.SHARED_LOAD, Kind.SHARED_STORE)


def counts_of(code: Sequence[Instruction], chosen: Iterable[Instruction] | None = None) -> dict[str, int]:
    """Return how many instructions of each kind there are; products by shape, accesses to memory by their width.

    ``chosen`` are the instructions that count; None: all of the code.
    """
    wanted = None if chosen is None else {one.address for one in chosen}
    found: dict[str, int] = {}
    for at, one in enumerate(code):
        if wanted is not None and one.address not in wanted:
            continue
        kind = kind_of(one)
        name = str(kind)
        if kind is Kind.TENSOR:
            name = f"{kind}:{product_of(code, at) or one.opcode}"
        elif kind in _WIDE and not one.is_never_executed:
            name = f"{kind}:{bytes_of(one)}B"
        elif kind is Kind.OTHER:
            name = f"{kind}:{one.name}"
        elif one.is_never_executed:
            name = str(Kind.NOTHING)
        found[name] = found.get(name, 0) + 1
    order = {str(kind): number for number, kind in enumerate(Kind)}
    return dict(sorted(found.items(), key=lambda item: (order[item[0].partition(":")[0]], item[0])))


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
