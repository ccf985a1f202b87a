"""The calibration workload: fixed work timed between samples, to separate a slow machine from slow code.

The three kinds of work must never change, because baselines carry their readings.

- ``interpreter``: a Python loop in one thread. It slows down with the clock frequency and with stolen time.
- ``memory``: a block, allocated and filled. Its cost is bandwidth, and page faults where freed memory cannot be kept
  (``measure/machine/devices.py``).
- ``threads``: small matrix products on PyTorch's intra-op pool. A neighbour that takes one core away makes threads
  wait at barriers for each other, and slows such work many times, while a single thread notices nothing. The judge
  uses this reading for cases that keep more than one core busy.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from perflab.devices.kinds import backend_of
from perflab.measure.clocks import clock

if TYPE_CHECKING:
    import torch

_SIDE = 128
_PRODUCTS = 4
_ADDITIONS = 2_000
_FILLED = 1 << 20
"""Number of float32 elements in the filled block: 4 MiB, more than a core's own caches hold."""
_SHARE = 20
"""Time between readings, in durations of a reading: calibration takes at most 5 % of the time."""


class CalibrationWorkload:
    """Readings of the fixed work in nanoseconds, spread over a measurement."""

    def __init__(self, device: torch.device) -> None:
        self._next_ns = 0
        self._work: dict[str, Callable[[], None]] = {}
        if backend_of(device).is_host:  # a GPU's clocks are evidence of their own
            self._work = {"interpreter": _count, "memory": _fill, "threads": _products()}
            for work in self._work.values():
                work()  # the first call is slow, so it is no reading
        self._readings_ns: dict[str, list[int]] = {name: [] for name in self._work}

    def read(self) -> None:
        """Take readings if they are due."""
        begin = clock.read_ns()
        if not self._work or begin < self._next_ns:
            return
        for name, work in self._work.items():
            start = clock.read_ns()
            work()
            self._readings_ns[name].append(clock.read_ns() - start)
        end = clock.read_ns()
        self._next_ns = end + _SHARE * (end - begin)

    def results_ns(self) -> dict[str, float]:
        """Return the median reading in nanoseconds of each kind of work; a kind with a median of 0 is left out."""
        medians = {name: float(median(readings)) for name, readings in self._readings_ns.items() if readings}
        return {name: value for name, value in medians.items() if value > 0}


def _count() -> None:
    total = 0
    for number in range(_ADDITIONS):
        total += number


def _fill() -> None:
    import torch

    torch.full((_FILLED,), 0.5)


def _products() -> Callable[[], None]:
    import torch

    factor, product = torch.full((_SIDE, _SIDE), 0.5), torch.empty(_SIDE, _SIDE)

    def multiply() -> None:
        with torch.inference_mode():
            for _ in range(_PRODUCTS):
                torch.mm(factor, factor, out=product)

    return multiply
