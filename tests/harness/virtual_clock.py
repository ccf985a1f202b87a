"""A clock that moves only when it is told to, so that a story about time is exact on every machine."""

from __future__ import annotations


class VirtualClock:
    """``read_ns`` gives the same answer until ``advance`` is called."""

    def __init__(self) -> None:
        self.now_ns = 0

    def read_ns(self) -> int:
        return self.now_ns

    def advance(self, duration_ns: int) -> None:
        self.now_ns += duration_ns
