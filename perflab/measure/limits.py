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
"""Least number of calls of a measurement: two of warm-up, three samples, and two of the memory pass."""
ESTIMATE_SLACK = 1.5
"""Factor by which a time estimated from operations and a matmul rate may be off; a case on the edge is still tried."""
PATIENCE_AT_LEAST_S = 900.0
"""Least patience in seconds: a case may train, compile or download before it measures, without saying so."""
PATIENCE_FACTOR = 10.0
"""Patience in expected times: machines are busy and estimates off, but a case that takes this long does not end."""


def patience_s(budget_s: float, set_up_s: float = 0.0, call_s: float = 0.0) -> float:
    """Return for how many seconds a case may show no sign of life until it counts as hung.

    A sign of life is a reading, a sample, or the end of a phase.

    Args:
        budget_s: the case's budget.
        set_up_s: the time before measuring that the case declares.
        call_s: the time of a call that the case declares.
    """
    expected_s = OVERRUN * budget_s + set_up_s + CALLS_AT_LEAST * call_s
    return max(PATIENCE_AT_LEAST_S, PATIENCE_FACTOR * expected_s)


def as_out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Return the error as a result if it says that memory ran out, else None.

    Recognised are PyTorch's ``OutOfMemoryError`` of every device, the ``RuntimeError`` of its CPU allocator, of CUDA
    and of cuBLAS, and Python's ``MemoryError``. ``asked_bytes`` is the size of the failed allocation, if the error's
    text states it.
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
