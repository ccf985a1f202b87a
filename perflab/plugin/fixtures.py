"""The fixtures: ``perf``, and the single tools that it is made of. Each works alone, on CPU and on CUDA.

Every run loads this module; what they give is made in ``tools.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from perflab.compiled.records import KernelResources
    from perflab.measure.memory_snapshot import MemorySnapshot
    from perflab.measure.sampling import Warmup
    from perflab.plugin.case.perf import Perf


@pytest.fixture
def perf(request: pytest.FixtureRequest, device: torch.device) -> Perf:
    """Measure a callable's latency and peak memory, and compare them with the saved baseline.

    ``perf(fn, *args, **kwargs)`` calls fn again and again and returns its result::

        def test_matmul(perf, device):
            a = torch.rand(512, 512, device=device)
            perf(torch.matmul, a, a)

    ``perf.step(forward=..., backward=..., optimizer=...)`` times the phases of a training step, ``perf.work(
    tokens=512)`` adds throughput, ``perf.note(loss=3.2)`` facts for the table of its study, ``perf.requires(
    memory_bytes=..., flops=...)`` skips a case that does not fit.
    A test that asks for this fixture is marked ``perf``. One measurement a test.
    """
    from perflab.plugin.case.tools import perf_for

    return perf_for(request, device)


@pytest.fixture
def compiled_kernel(request: pytest.FixtureRequest) -> KernelResources:
    """A registered Triton kernel, compiled for one GPU architecture; no GPU is needed.

    A test that asks for it becomes a case for each kernel that ``perf_kernels`` names and each architecture of
    ``--perf-arch``, and fails if the kernel does not compile, does not fit, or got worse than its baseline: new spills,
    a lost kind of tensor-core instruction, lower occupancy. What it takes may be looked at too::

        def test_kernel(compiled_kernel):
            assert compiled_kernel.registers <= 168
    """
    from perflab.plugin.case.tools import kernel_for

    return kernel_for(request)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The ``torch.device`` chosen by ``--perf-device``: by itself a GPU where there is one, else the CPU.

    Under pytest-xdist the workers spread over the GPUs. Under ``--perf-predict`` it is ``cuda:0`` for perf cases, which
    stands for the GPU that is predicted for: tensors on it are fake, and nothing needs to be there.
    """
    from perflab.plugin.case.tools import device_of

    return device_of(request.config)


@pytest.fixture
def sync(device: torch.device) -> Callable[[], None]:
    """``sync()`` returns when the device has finished all work that it was given. On a CPU it has already."""
    from perflab.measure.devices import synchronize

    return partial(synchronize, device)


@pytest.fixture
def warmup(request: pytest.FixtureRequest, device: torch.device) -> Callable[..., Warmup]:
    """``warmup(fn, *args, **kwargs)`` calls fn until successive timings agree, and tells how that went.

    The result has ``calls``, ``settled`` (whether readings agreed before a quarter of ``--perf-budget`` was
    spent) and ``readings_ns``, the time of one call in each reading. In a case that is predicted, or that runs untimed,
    fn is called once.
    """
    from perflab.plugin.case.tools import warmup_on

    return warmup_on(request, device)


@pytest.fixture
def autocast(
    device: torch.device,
) -> Callable[[torch.dtype | str | None], contextlib.AbstractContextManager[object]]:
    """``with autocast("bf16"):`` runs the block under ``torch.autocast`` on the device.

    Takes a dtype or ``"bf16"``, ``"fp16"``, ``"fp32"``; fp32 and None mean no autocast, so that a test can be
    parametrized over precisions.
    """
    from perflab.measure.devices import autocast_on

    return partial(autocast_on, device)


@pytest.fixture
def memory_snapshot(
    request: pytest.FixtureRequest, device: torch.device
) -> Callable[..., contextlib.AbstractContextManager[MemorySnapshot]]:
    """``with memory_snapshot("forward") as snapshot:`` records every allocation and free of the block.

    After the block ``snapshot.peak_bytes`` is the highest rise of live memory within it, and ``snapshot.path``
    the file that holds the history: on CUDA PyTorch's own snapshot, for https://pytorch.org/memory_viz; on a CPU
    JSON, a list of ``[time in ns, bytes]``. Files go to ``.perflab/snapshots/``. In a case that is predicted it is the
    predicted history of the block, in PyTorch's format.
    """
    from perflab.plugin.case.tools import snapshots_of

    return snapshots_of(request, device)


@pytest.fixture
def nvtx_range(device: torch.device) -> Callable[[str], contextlib.AbstractContextManager[None]]:
    """``with nvtx_range("attention"):`` names what the block does on a profiler's timeline.

    An NVTX range for Nsight Systems on a CUDA device, and a ``torch.profiler`` range on any.
    """
    from perflab.measure.nvtx import nvtx_range as open_range

    return partial(open_range, device=device)
