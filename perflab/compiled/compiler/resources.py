"""Parses the log of ptxas, and counts instructions in the PTX. Pure."""

from __future__ import annotations

import re

_INSTRUCTIONS = {
    "mma": re.compile(r"^\s*(?:@!?%\w+\s+)?mma\.(?:sp(?:::\w+)?\.)?sync\b", re.MULTILINE),
    "wgmma": re.compile(r"\bwgmma\.mma_async\b"),
    "tcgen05": re.compile(r"\btcgen05\.mma\b"),
    "tma": re.compile(r"\bcp(?:\.reduce)?\.async\.bulk\.tensor\b"),
}
"""The patterns of instructions by kind, named as in the PTX ISA: tensor-core products that exist since Ampere
(``mma``), Hopper (``wgmma``) and Blackwell (``tcgen05``), and copies by TMA."""


def read_assembler(log: str) -> dict[str, int]:
    """Return a kernel's resources from the log of ``ptxas -v``, named as in ``KernelResources``.

    The stack size differs from the spilled bytes: arrays are also on the stack, and spilled registers need not be.

    Raises:
        ValueError: the text is not a log of ``ptxas -v``.
    """
    # The log has one section for the kernel, and one for each called function that was not inlined.
    properties = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = re.search(r"Used (\d+) registers", log)
    if not properties or registers is None:
        raise ValueError(f"ptxas -v reported neither registers nor spills: {log.strip()[:200]!r}")
    shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", log)
    stacks, stores, loads = (list(map(int, column)) for column in zip(*properties, strict=True))
    return {
        "registers": int(registers[1]),
        "stack_bytes": max(stacks),
        "spill_store_bytes": sum(stores),
        "spill_load_bytes": sum(loads),
        "static_shared_bytes": int(shared[1]) if shared else 0,
    }


def count_instructions(ptx: str) -> dict[str, int]:
    """Return the number of instructions in the PTX by kind; kinds without any are left out."""
    code = re.sub(r"//.*", "", ptx)
    found = {kind: len(pattern.findall(code)) for kind, pattern in _INSTRUCTIONS.items()}
    return {kind: count for kind, count in found.items() if count}


def assembler_version(text: str) -> str:
    """Return the version, such as ``12.9.86``, from the output of ``ptxas --version``; ``unknown`` if there is none."""
    match = re.search(r"\bV(\d+(?:\.\d+)+)", text)
    return match[1] if match else "unknown"


def useful_lines(message: str, most: int = 8) -> str:
    """Return the most informative lines of a compiler's message: lines with an error, else the last lines."""
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\b(error|fatal)\b\s*:", line)]
    kept = telling[:most] if telling else lines[-most:]
    return "\n".join(line if len(line) <= 200 else f"{line[:199]}…" for line in kept)
