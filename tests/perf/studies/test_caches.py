"""The study of caches: one addition with warm and with cold ones, beside what PyTorch and Triton measure of it.

Shapes: a, b, out (n), fp32. `timer_ns` is `torch.utils.benchmark.Timer`'s median: calls in a row, so warm.
`do_bench_ns` is that of `triton.testing.do_bench`, which evicts before each call, so cold. On a CPU Triton 3.9 has no
driver for it ("0 active drivers"): there its loop is given PyTorch's own CPU events (`torch._dynamo`'s `CpuInterface`)
and a buffer as large as perflab's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from perflab import Perf
from perflab.instruments import eviction_bytes

KIB_EACH = {"cpu": (64, 1024, 4096), "cuda": (64, 1024, 16384)}
"""Of each of three tensors: in a core's own cache, in the last-level cache, and what may be more than one's share."""
SECONDS = 1
LONGEST_MS = 1500
"""What `do_bench` is given; evictions and calls, on a CPU."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Sizes that mean something on the device."""
    if "kib" in metafunc.fixturenames:
        metafunc.parametrize("kib", KIB_EACH["cuda" if torch.cuda.is_available() else "cpu"])


@pytest.mark.perf(
    study="caches", columns="median, std, bytes/s, timer_ns, do_bench_ns", versus="cache=warm", budget=SECONDS
)
@pytest.mark.parametrize("cache", [pytest.param(how, marks=pytest.mark.perf(cache=how)) for how in ("warm", "cold")])
def test_addition(perf: Perf, device: torch.device, kib: int, cache: str) -> None:
    """Two tensors added into a third: three passes over memory, and next to no arithmetic."""
    a, b, out = torch.rand(3, kib * 256, device=device)
    perf.requires(seconds=0.05, setup_seconds=SECONDS + LONGEST_MS / 1e3)
    perf.work(bytes=3 * kib * 1024)

    def add() -> Tensor:
        return torch.add(a, b, out=out)

    if cache == "warm":
        timer = Timer("add()", globals={"add": add}, num_threads=torch.get_num_threads())
        perf.note(timer_ns=1e9 * timer.blocked_autorange(min_run_time=SECONDS / 2).median)
    else:
        perf.note(do_bench_ns=do_bench_ns(add, device))
    perf(add)


def do_bench_ns(call: Callable[[], object], device: torch.device) -> float:
    """The median of `triton.testing.do_bench`'s times of single calls, in nanoseconds."""
    testing = pytest.importorskip("triton.testing")
    with _driver_for(device):
        times_ms: Any = testing.do_bench(call, warmup=25, rep=LONGEST_MS, return_mode="all")
    return 1e6 * float(median(times_ms))


@contextmanager
def _driver_for(device: torch.device) -> Iterator[None]:
    """What `do_bench` asks of the active driver, answered for a CPU; on CUDA Triton has its own."""
    if device.type == "cuda":
        yield
        return
    from torch._dynamo.device_interface import CpuInterface
    from triton.runtime import driver

    class Cpu:
        """A device's events, and a buffer that evicts its caches."""

        def get_device_interface(self) -> object:
            return CpuInterface

        def get_empty_cache_for_benchmark(self) -> Tensor:
            return torch.empty(eviction_bytes(device) // 4, dtype=torch.int32)

        def clear_cache(self, cache: Tensor) -> None:
            cache.zero_()

    driver.set_active(Cpu())  # type: ignore[arg-type]
    try:
        yield
    finally:
        driver.set_active(None)  # type: ignore[arg-type]  # as it was: asked for when it is needed
