"""What the tests of the pure rooms share: a clock that moves only when it is told to, and quiet surroundings."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from perflab.compiled.compiler.pool import CompilerPool
from perflab.measure.clocks import clock
from tests.fixtures import python_of_ranks, quick_collections, warm_start  # noqa: F401
from tests.harness.browser import Browser
from tests.harness.command import Command
from tests.harness.fake_cuda import FakeCuda
from tests.harness.virtual_clock import VirtualClock


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """PyTorch without its thread pool: its threads spin while they wait for each other, mostly on small matrices."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """Stands in for the host's clock until the test ends."""
    virtual = VirtualClock()
    monkeypatch.setattr(clock, "read_ns", virtual.read_ns)
    monkeypatch.setattr(clock, "read_processor_ns", virtual.read_ns)
    monkeypatch.setattr(clock, "read_all_processors_ns", virtual.read_ns)
    return virtual


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Stands in for a CUDA device until the test ends."""
    return FakeCuda().installed(monkeypatch)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The ``perflab`` command, in a terminal of 80 columns wherever the tests run."""
    monkeypatch.setenv("COLUMNS", "80")
    return Command(capsys)


@pytest.fixture(scope="module")
def pool(python_of_kernels: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilerPool]:
    """Warm compiler processes, with a cache of their own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "executable", python_of_kernels)
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # heeded when Python starts: none would be warm
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        with CompilerPool() as pool:
            pool.start()
            yield pool


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A running browser."""
    from tests.harness.browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def whole_collections() -> Iterator[None]:
    """For tests of what collections look through: all that there is."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()
