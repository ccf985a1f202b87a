"""perflab tells whether PyTorch and Triton code became slower, hungrier or wrong.

Importing this package costs next to nothing: neither torch nor triton is loaded until something measures.
"""

__version__ = "0.1.0"

__all__ = ["__version__", "cuda_timer"]


def cuda_timer() -> float:
    """Seconds on a monotonic clock, read once every CUDA device in use has finished its queued work.

    Made for ``pytest --benchmark-timer=perflab.cuda_timer``: pytest-benchmark reads its timer before and after
    the timed calls, so both readings must wait for the GPU. Without CUDA it is ``time.perf_counter``.
    """
    from perflab.measure.clock import synchronized_seconds

    return synchronized_seconds()
