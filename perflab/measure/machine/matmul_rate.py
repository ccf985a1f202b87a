"""Measures a device's rate of plain matrix products, for estimates and for MFU."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from perflab.devices.kinds import backend_of
from perflab.measure.machine.devices import identity_of, synchronize

if TYPE_CHECKING:
    import torch

_SECONDS = 0.3
_ANOTHER_LOOK_SECONDS = 0.03
_SEED = 0
_FLOAT32 = {"tf32": "tf32", "bf16": "float32 as bf16"}
"""Names of the lower precisions in which PyTorch may compute float32 products, by its ``fp32_precision``."""
_rates: dict[tuple[str, str], float] = {}


def precision_of_products(device: torch.device, dtype: torch.dtype) -> str:
    """Return the precision in which products of this dtype are computed at present: ``float32`` may mean ``tf32``.

    PyTorch's switches for the precision are global: ``torch.set_float32_matmul_precision`` and the ``fp32_precision``
    of ``torch.backends``.
    """
    import torch

    name = str(dtype).removeprefix("torch.")
    if dtype != torch.float32:
        return name
    return _FLOAT32.get(backend_of(device).float32_precision(), name)


def matmul_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Return the device's matrix-multiply rate in FLOP/s: the best square product that this process has seen so far.

    The rate is that of the precision to which PyTorch is switched now. The first call takes a third of a second, and
    each later call measures for a moment more, since a disturbance of the first one does not last. The process's own
    random numbers are left as they are: a replicate needs no rate, and draws the same numbers.
    """
    import torch

    key = (identity_of(device), precision_of_products(device, dtype))
    side = backend_of(device).matmul_side
    numbers = torch.Generator().manual_seed(_SEED)  # a CPU's: not every kind of device has one
    left = torch.rand(side, side, generator=numbers).to(device, dtype)
    with torch.inference_mode():
        if key not in _rates:
            left @ left  # the first product of a dtype sets libraries up for as long as a second
        deadline = time.perf_counter() + (_SECONDS if key not in _rates else _ANOTHER_LOOK_SECONDS)
        best = float("inf")
        while best == float("inf") or time.perf_counter() < deadline:
            synchronize(device)
            start = time.perf_counter()
            left @ left
            synchronize(device)
            best = min(best, time.perf_counter() - start)
    _rates[key] = max(_rates.get(key, 0.0), 2.0 * side**3 / best)
    return _rates[key]
