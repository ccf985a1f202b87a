"""Parses the log of ptxas and AMD's assembly, and counts special instructions. Pure."""

from __future__ import annotations

import re

_INSTRUCTIONS = {
    "mma": re.compile(r"^\s*(?:@!?%\w+\s+)?mma\.(?:sp(?:::\w+)?\.)?sync\b", re.MULTILINE),
    "wgmma": re.compile(r"\bwgmma\.mma_async\b"),
    "tcgen05": re.compile(r"\btcgen05\.mma\b"),
    "tma": re.compile(r"\bcp(?:\.reduce)?\.async\.bulk\.tensor\b"),
    "mfma": re.compile(r"^\s*v_(?:mfma|smfmac)_", re.MULTILINE),
}
"""The patterns of instructions by kind, named as in the PTX ISA: tensor-core products that exist since Ampere
(``mma``), Hopper (``wgmma``) and Blackwell (``tcgen05``), and copies by TMA; and as in AMD's ISA of CDNA: products of
matrix cores (``mfma``)."""
_REGISTER_BYTES = 4


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


def read_amdgcn(assembly: str) -> tuple[dict[str, int], int]:
    """Return a kernel's resources from its AMD assembly: from its metadata, and from LLVM's comments on the kernel.

    They are named as in ``KernelResources``; with them the most waves that are on a SIMD at once, by their registers.
    Scalar registers that spill go into lanes of vector registers, and count as these.

    Raises:
        ValueError: the text lacks one of the numbers.
    """
    said = dict(re.findall(r"^\s*\.(\w+):\s*(\d+)\s*$", assembly, re.MULTILINE))
    said |= dict(re.findall(r"^\s*; (ScratchSize|Occupancy): (\d+)", assembly, re.MULTILINE))
    wanted = ("vgpr_count", "vgpr_spill_count", "group_segment_fixed_size", "ScratchSize", "Occupancy")
    if missing := [name for name in wanted if name not in said]:
        raise ValueError(f"the assembly of the kernel does not say its {', '.join(missing)}")
    resources = {
        "registers": int(said["vgpr_count"]),
        "stack_bytes": int(said["ScratchSize"]),
        "spill_store_bytes": _REGISTER_BYTES * int(said["vgpr_spill_count"]),
        "spill_load_bytes": 0,
        "static_shared_bytes": int(said["group_segment_fixed_size"]),
    }
    return resources, int(said["Occupancy"])


def read_remarks(log: str) -> list[str]:
    """Return what ptxas says of lost performance, without the line of its PTX, each once."""
    found = re.findall(r"Potential Performance Loss: (.*?)(?: in line \d+)?$", log, re.MULTILINE)
    return list(dict.fromkeys(re.sub(r" in the function '[^']*'", "", one).strip() for one in found))


def count_instructions(code: str) -> dict[str, int]:
    """Return the number of special instructions in PTX or AMD assembly by kind; kinds without any are left out."""
    code = re.sub(r"//.*", "", code)
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
