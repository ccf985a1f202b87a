"""The fixtures: ``perf``, and the tools of which ``perf`` is made. Each fixture works alone, on CPU and on CUDA.

Every run loads this module; ``tools.py``, which makes the fixtures' values, is loaded when a test uses one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from perflab.measure.memory.histories import MemorySnapshot
    from perflab.measure.stopping import Warmup
    from perflab.results.compiled import KernelResources
    from perflab.running.case.perf import Perf


@pytest.fixture
def perf(request: pytest.FixtureRequest, device: torch.device) -> Perf:
    """Measure a callable's latency and peak memory, and compare them with the saved baseline.

    ``perf(fn, *args, **kwargs)`` calls fn repeatedly and returns its result::

        def test_matmul(perf, device):
            a = torch.rand(512, 512, device=device)
            perf(torch.matmul, a, a)

    - ``perf(fn, setup=make)`` makes the arguments of each call anew, untimed: for what changes or uses up its input.
    - ``perf.step(forward=..., backward=..., optimizer=...)`` times the phases of a training step.
    - ``perf.phases(prefill=..., decode=...)`` times phases of any names, each given the result of the one before.
    - ``perf.generation(generate)`` times the generation of tokens: the first one, and all others.
    - ``perf.compare(base=..., candidate=...)`` compares two callables in turns, and measures the second.
    - ``perf.work(tokens=512)`` adds throughput to the results.
    - ``perf.note(loss=3.2)`` adds facts to the case's record and to the table of its study.
    - ``perf.requires(memory_bytes=..., flops=...)`` skips the case if it does not fit.

    A test that uses this fixture gets the ``perf`` marker. Each test makes one measurement.
    """
    from perflab.running.case.tools import perf_for

    return perf_for(request, device)


@pytest.fixture
def compiled_kernel(request: pytest.FixtureRequest) -> KernelResources:
    """A registered Triton kernel, compiled for one GPU architecture. No GPU is needed.

    A test that uses this fixture runs once for each kernel in ``perf_kernels`` and each architecture in
    ``--perf-arch``. The test fails if the kernel does not compile, cannot run on the architecture, or got worse than
    its baseline: more spills, a lost kind of tensor-core instruction, lower occupancy. The test can also check the
    resources of the kernel::

        def test_kernel(compiled_kernel):
            assert compiled_kernel.registers <= 168
    """
    from perflab.compiled.run.cases import kernel_for

    return kernel_for(request)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The ``torch.device`` chosen by ``--perf-device``. By default PyTorch's accelerator if there is one, else the CPU.

    Under pytest-xdist the GPUs are distributed over the workers. Under ``--perf-predict`` a perf case gets ``cuda:0``,
    which represents the GPU in ``--perf-gpu``. Tensors on it are fake, and no GPU is needed.
    """
    from perflab.running.case.tools import device_of

    return device_of(request.config)


@pytest.fixture
def rank() -> int:
    """The rank of this process in its process group, from 0; 0 without a group.

    A case that is marked ``@pytest.mark.perf(world_size=2)`` runs in two processes at once, the ranks of one group.
    """
    from perflab.running.case.tools import rank_here

    return rank_here()[0]


@pytest.fixture
def world_size() -> int:
    """The number of processes in this process's group; 1 without a group."""
    from perflab.running.case.tools import rank_here

    return rank_here()[1]


@pytest.fixture
def process_group(device: torch.device) -> Iterator[torch.distributed.ProcessGroup]:
    """The default process group of ``torch.distributed``: that of the case's ranks, or else of this process alone.

    gloo on a CPU, NCCL on CUDA. Its collectives, and those of any group made from it, are counted.
    """
    from perflab.running.case.tools import group_here

    with group_here(device) as group:
        yield group


@pytest.fixture
def sync(device: torch.device) -> Callable[[], None]:
    """``sync()`` waits until the device has finished all queued work. On a CPU it returns at once."""
    from perflab.devices.kinds import backend_of

    return backend_of(device).synchronize


@pytest.fixture
def warmup(request: pytest.FixtureRequest, device: torch.device) -> Callable[..., Warmup]:
    """``warmup(fn, *args, **kwargs)`` calls fn until successive timings agree.

    The result has ``calls``, ``settled`` (whether timings agreed before a quarter of ``--perf-budget`` was spent) and
    ``readings_ns``, the time of one call in each reading. In a predicted or untimed case, fn is called once.
    """
    from perflab.running.case.tools import warmup_on

    return warmup_on(request, device)


@pytest.fixture
def autocast(device: torch.device) -> Callable[[torch.dtype | str | None], contextlib.AbstractContextManager[object]]:
    """``with autocast("bf16"):`` runs the block under ``torch.autocast`` on the device.

    It takes a dtype, ``"bf16"``, ``"fp16"``, ``"fp32"`` or None. fp32 and None mean no autocast, so a test can be
    parametrized over precisions.
    """
    from perflab.measure.machine.devices import autocast_on

    return partial(autocast_on, device)


@pytest.fixture
def memory_snapshot(
    request: pytest.FixtureRequest, device: torch.device
) -> Callable[..., contextlib.AbstractContextManager[MemorySnapshot]]:
    """``with memory_snapshot("forward") as snapshot:`` records every allocation and free in the block.

    After the block, ``snapshot.peak_bytes`` is the highest rise of live memory within it, and ``snapshot.path`` is the
    file with the history, in ``.perflab/snapshots/``. On CUDA it is a PyTorch snapshot for
    https://pytorch.org/memory_viz. On a CPU it is JSON, whose ``events`` are pairs ``[time in ns, bytes]``. In a
    predicted case it is the predicted history of the block, in PyTorch's format.
    """
    from perflab.running.case.tools import snapshots_of

    return snapshots_of(request, device)


@pytest.fixture
def nvtx_range(device: torch.device) -> Callable[[str], contextlib.AbstractContextManager[None]]:
    """``with nvtx_range("attention"):`` labels the block on a profiler's timeline.

    It opens a ``torch.profiler`` range on every device, and on CUDA also an NVTX range for Nsight Systems. Backward
    kernels, which another thread launches, belong to it too.
    """
    from perflab.measure.calls.nvtx import nvtx_range as open_range

    return partial(open_range, device=device)
