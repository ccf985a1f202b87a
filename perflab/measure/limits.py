"""Recognises out-of-memory errors, and estimates whether a case fits."""

from __future__ import annotations

import re

from perflab.measure.records import OutOfMemory
from perflab.measure.sampling import OVERRUN
from perflab.units import BYTES_PER

_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+) ?(bytes|[KMGT]iB|B)\b")
_CACHED = re.compile(r"([0-9.]+) ?(bytes|[KMGT]iB|B) is reserved by PyTorch but unallocated")
_RAN_OUT = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
CALLS_AT_LEAST = 7
"""Two calls of warm-up, three samples, and the two of the memory pass: no measurement takes fewer."""
ESTIMATE_SLACK = 1.5
"""A time estimated from operations and a matmul rate may be off by this; a case on the edge gets its try."""
PATIENCE_AT_LEAST_S = 900.0
"""A case may train, compile or download before it measures, and need not say so: a quarter of an hour is for that."""
PATIENCE_FACTOR = 10.0
"""Machines are busy, and estimates off: what takes ten times as long as it may take does not come to its end."""


def patience_s(budget_s: float, set_up_s: float = 0.0, call_s: float = 0.0) -> float:
    """How long a case may go without a sign of life (a reading, a sample, the end of a phase) until it counts as hung.

    Args:
        budget_s: of the case.
        set_up_s: what the case says that it takes before it measures.
        call_s: what it says that a call takes.
    """
    expected_s = OVERRUN * budget_s + set_up_s + CALLS_AT_LEAST * call_s
    return max(PATIENCE_AT_LEAST_S, PATIENCE_FACTOR * expected_s)


def as_out_of_memory(error: BaseException) -> OutOfMemory | None:
    """The error as a result if it says that memory ran out, else None.

    Known are PyTorch's ``OutOfMemoryError`` of every device, the ``RuntimeError`` of its CPU allocator, of CUDA and of
    cuBLAS, and Python's ``MemoryError``. ``asked_bytes`` is the allocation that failed, where the text tells it.
    """
    import torch

    text = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not (
        isinstance(error, RuntimeError) and any(said in text for said in _RAN_OUT)
    ):
        return None
    return OutOfMemory(asked_bytes=_bytes(_ASKED.search(text)), cached_bytes=_bytes(_CACHED.search(text)))


def _bytes(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    return round(float(match[1]) * (1 if match[2] == "bytes" else BYTES_PER[match[2]]))
