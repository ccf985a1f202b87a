"""A fixed piece of work, read between the samples: it tells a slower machine from slower code.

Its text must never change: baselines carry its readings. It uses what PyTorch code uses on a CPU, the
interpreter and the intra-op thread pool, and is small enough (well under a millisecond) to sit between samples.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from perflab.measure import clock

if TYPE_CHECKING:
    import torch

_SIDE = 128
_ADDITIONS = 2_000
_SHARE = 20
"""A reading is taken when this many times its own duration has passed since the last one: at most 5 %."""


class Yardstick:
    """Readings of the fixed work in nanoseconds, spread over a measurement."""

    def __init__(self, device: torch.device) -> None:
        self.readings_ns: list[int] = []
        self._next_ns = 0
        self._operands: tuple[torch.Tensor, torch.Tensor] | None = None
        if device.type == "cpu":
            import torch

            self._operands = (torch.full((_SIDE, _SIDE), 0.5), torch.empty(_SIDE, _SIDE))
            self._work()  # first calls are slow, and are no reading

    def _work(self) -> None:
        import torch

        assert self._operands is not None
        factor, product = self._operands
        with torch.inference_mode():
            for _ in range(4):
                torch.mm(factor, factor, out=product)
        total = 0
        for number in range(_ADDITIONS):
            total += number

    def read(self) -> None:
        """Take a reading if one is due. On a GPU there is none: its clocks are evidence of their own."""
        if self._operands is None or clock.read_ns() < self._next_ns:
            return
        start = clock.read_ns()
        self._work()
        end = clock.read_ns()
        self.readings_ns.append(end - start)
        self._next_ns = end + _SHARE * (end - start)

    def result_ns(self) -> float | None:
        """Median reading; None without any, or where the clock did not move."""
        return median(self.readings_ns) or None if self.readings_ns else None
