"""Out of memory as a result, and whether a case fits before it is run."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from perflab.records import OutOfMemory
from perflab.units import BYTES_PER

if TYPE_CHECKING:
    import torch

_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+) ?(bytes|[KMGT]iB|B)\b")
_RAN_OUT = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
CALLS_AT_LEAST = 7
"""Two calls of warm-up, three samples, and the two of the memory pass: no measurement takes fewer."""
ESTIMATE_SLACK = 1.5
"""A time estimated from operations and a matmul rate may be off by this; a case on the edge gets its try."""
_RATE_SIDE = {"cpu": 768, "cuda": 6144}
"""Long against a launch, short against a case."""
_RATE_SECONDS = 0.3
_ANOTHER_LOOK_SECONDS = 0.03
_rates: dict[tuple[str, str], float] = {}


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
    match = _ASKED.search(text)
    if match is None:
        return OutOfMemory(asked_bytes=None)
    scale = 1 if match[2] == "bytes" else BYTES_PER[match[2]]
    return OutOfMemory(asked_bytes=round(float(match[1]) * scale))


def matmul_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Matrix-multiply rate of the device: the best square product that this process has seen so far.

    A third of a second the first time, and a moment more at each call: what disturbed the first look is not there for
    ever. It is a yardstick for "would this fit into the budget" and for shares of the device's rate, and no benchmark.
    """
    import torch

    from perflab.measure.devices import synchronize

    key = (str(device), str(dtype))
    side = _RATE_SIDE[device.type]
    left = torch.rand(side, side, device=device).to(dtype)
    with torch.inference_mode():
        if key not in _rates:
            left @ left  # the first product of a dtype sets libraries up for as long as a second
        deadline = time.perf_counter() + (_RATE_SECONDS if key not in _rates else _ANOTHER_LOOK_SECONDS)
        best = float("inf")
        while best == float("inf") or time.perf_counter() < deadline:
            synchronize(device)
            start = time.perf_counter()
            left @ left
            synchronize(device)
            best = min(best, time.perf_counter() - start)
    _rates[key] = max(_rates.get(key, 0.0), 2.0 * side**3 / best)
    return _rates[key]
