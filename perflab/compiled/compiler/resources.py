"""Parses what ptxas reports and counts instructions in the PTX. Pure."""

from __future__ import annotations

import re

_INSTRUCTIONS = {
    "mma": re.compile(r"^\s*(?:@!?%\w+\s+)?mma\.(?:sp(?:::\w+)?\.)?sync\b", re.MULTILINE),
    "wgmma": re.compile(r"\bwgmma\.mma_async\b"),
    "tcgen05": re.compile(r"\btcgen05\.mma\b"),
    "tma": re.compile(r"\bcp(?:\.reduce)?\.async\.bulk\.tensor\b"),
}
"""By the names of the PTX ISA: products on tensor cores from Ampere, Hopper and Blackwell on, and TMA's copies."""


def read_assembler(log: str) -> dict[str, int]:
    """What the log of ``ptxas -v`` says of a kernel, named as in ``KernelResources``.

    The stack is not what was spilled: arrays live there too. And what is spilled need not be on the stack.

    Raises:
        ValueError: it is not such a log.
    """
    # A block for the kernel, and one for each function that it calls and that was not inlined.
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
    """How often each kind of instruction stands in the PTX; kinds that do not are left out."""
    code = re.sub(r"//.*", "", ptx)
    found = {kind: len(pattern.findall(code)) for kind, pattern in _INSTRUCTIONS.items()}
    return {kind: count for kind, count in found.items() if count}


def assembler_version(text: str) -> str:
    """``12.9.86`` out of what ``ptxas --version`` prints."""
    match = re.search(r"\bV(\d+(?:\.\d+)+)", text)
    return match[1] if match else "unknown"


def useful_lines(message: str, most: int = 8) -> str:
    """Of what a compiler said, the lines that tell most: those with an error, else the last ones."""
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\b(error|fatal)\b\s*:", line)]
    kept = telling[:most] if telling else lines[-most:]
    return "\n".join(line if len(line) <= 200 else f"{line[:199]}…" for line in kept)
