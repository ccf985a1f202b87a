"""Machine code as instructions, from ``nvdisasm -json``; no other module reads what a disassembler prints.

The JSON form (a list of functions, each a list of instructions of 16 bytes) is documented in CUDA Binary Utilities,
"nvdisasm", and exists since CUDA 12.5; its schema's major version is that of CUDA.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from perflab.base.errors import KernelError

INSTRUCTION_BYTES = 16
_PATIENCE_S = 120.0
_ADDRESS = re.compile(r"^0x[0-9a-f]+$")
_BRANCHES = ("BRA", "JMP", "CALL")
_JOINED = re.compile(r"(?<![\w.])(U?R(?:\d+|Z)|!?U?P(?:\d|T))(?=\[)")
"""A destination that nvdisasm joins to the address behind it: ``R12[R28]``."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of a kernel (SASS)."""

    address: int
    """The offset in bytes from the function's first instruction."""
    opcode: str
    """The operation with its modifiers: ``HMMA.16816.F32.BF16``."""
    operands: tuple[str, ...] = ()
    """The operands in order, the destination first: ``("R48", "R108.reuse", "R56", "RZ")``."""
    predicate: str = ""
    """The condition under which it takes effect, such as ``@!P1``; empty for none. It is issued in any case."""
    target: int | None = None
    """The address that a branch leads to; None: this is no branch within the function."""

    @cached_property
    def name(self) -> str:
        """The operation alone: ``HMMA``."""
        return self.opcode.partition(".")[0]

    @cached_property
    def modifiers(self) -> frozenset[str]:
        """The modifiers of the operation: ``16816``, ``F32``, ``BF16``."""
        return frozenset(self.opcode.split(".")[1:])

    @property
    def is_never_executed(self) -> bool:
        """Whether its condition is constantly false: a placeholder, which is issued all the same."""
        return self.predicate == "@!PT"


@dataclass(frozen=True)
class Function:
    """The machine code of a kernel."""

    name: str
    """The name of its symbol, mangled if the compiler mangled it."""
    arch: int
    """The architecture as a number: 90 is sm_90."""
    instructions: tuple[Instruction, ...]


class _Instruction(msgspec.Struct):
    opcode: str
    operands: str = ""
    predicate: str = ""
    attributes: dict[str, str] = msgspec.field(name="other-attributes", default_factory=dict)


class _Function(msgspec.Struct):
    name: str = msgspec.field(name="function-name")
    start: int
    instructions: list[_Instruction] = msgspec.field(name="sass-instructions")


class _Version(msgspec.Struct):
    major: int
    minor: int


class _Target(msgspec.Struct):
    version: _Version


class _Head(msgspec.Struct):
    target: _Target = msgspec.field(name="SM")


def parse(text: str | bytes) -> list[Function]:
    """Parse the output of ``nvdisasm -json``.

    Raises:
        ValueError: the text is of another form.
    """
    try:
        head, functions = msgspec.json.decode(text, type=tuple[_Head, list[_Function]])
    except msgspec.ValidationError as error:
        raise ValueError(f"not what nvdisasm -json prints: {error}") from error
    arch = 10 * head.target.version.major + head.target.version.minor
    return [Function(one.name, arch, tuple(_read(one))) for one in functions]


def _read(function: _Function) -> list[Instruction]:
    found = []
    for number, one in enumerate(function.instructions):
        text = _JOINED.sub(r"\1,", one.operands)
        operands = tuple(part.strip() for part in text.split(",")) if text else ()
        # ptxas writes a call of the next instruction but one for a branch; others, of functions, have names.
        leads = one.opcode.partition(".")[0] in _BRANCHES and bool(operands) and _ADDRESS.match(operands[-1])
        target = int(operands[-1], 16) - function.start if leads else None
        found.append(Instruction(INSTRUCTION_BYTES * number, one.opcode, operands, one.predicate, target))
    return found


def disassemble(cubin: Path, disassembler: str) -> list[Function]:
    """Disassemble a file of machine code with ``nvdisasm``, whose path is given.

    Raises:
        KernelError: nvdisasm fails, or prints another form.
    """
    command = [disassembler, "-json", str(cubin)]
    try:
        said = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True).stdout
        return parse(said)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        told = getattr(error, "stderr", None) or str(error).encode()
        raise KernelError(
            f"{disassembler} cannot read {cubin.name}: {told.decode(errors='replace').strip()[:300]}",
            "use a Triton whose nvdisasm knows -json (CUDA 12.5 or later), or install nvidia-cuda-nvdisasm",
        ) from error
