"""perflab tells whether PyTorch and Triton code became slower, hungrier or wrong.

Importing this package costs next to nothing: neither torch nor triton is loaded until something measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perflab.compared.callables import Comparison, compare

__version__ = "0.1.0"

__all__ = ["Comparison", "__version__", "compare", "cuda_timer"]


def __getattr__(name: str) -> object:
    """Load the comparison of two callables when it is asked for."""
    if name not in ("Comparison", "compare"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perflab.compared import callables

    return getattr(callables, name)


def cuda_timer() -> float:
    """Seconds on a monotonic clock, read once every CUDA device in use has finished its queued work.

    Made for ``pytest --benchmark-timer=perflab.cuda_timer``: pytest-benchmark reads its timer before and after
    the timed calls, so both readings must wait for the GPU. Without CUDA it is ``time.perf_counter``.
    """
    from perflab.measure.clock import synchronized_seconds

    return synchronized_seconds()
