"""The machine code of both sides' Triton kernels in words: what a change of time can and cannot come from. Pure."""

from __future__ import annotations

from perflab.results.measurement import KernelCode
from perflab.units import format_names


def kernel_code_text(code: KernelCode) -> str:
    """Return a sentence: the kernels whose machine code differs, or that it is the same and what follows from that."""
    found = {"differs": code.changed, "is new": code.new, "is gone": code.gone}
    differing = [f"{format_names(names)} {how}" for how, names in found.items() if names]
    if differing:
        same = [f"{format_names(code.same)} is the same"] if code.same else []
        return f"the machine code of {', of '.join([*differing, *same])}"
    others = "" if code.is_all else "in other kernels, "
    elsewhere = f"{others}in what kernels are given and how often, in copies, on the host or in the machine"
    return f"the machine code of {format_names(code.same)} is the same: whatever changed is {elsewhere}"
