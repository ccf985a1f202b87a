"""The implementation of the fixtures; loaded when a test uses the first of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from perflab.base.errors import UsageError
from perflab.devices.kinds import resolve_device
from perflab.measure.machine.devices import current_device
from perflab.noting import case_id
from perflab.ranks.group import join_launched, launched, leave
from perflab.running.config.kinds import FAKING, RUNS_ONCE, worker_number
from perflab.running.config.reading import settings_of

if TYPE_CHECKING:
    import torch
    import torch.distributed

    from perflab.measure.memory.histories import MemorySnapshot
    from perflab.measure.stopping import Warmup
    from perflab.running.case.perf import Perf

PERF_FOR: pytest.StashKey[Callable[[pytest.Item, torch.device], Perf]] = pytest.StashKey()
"""The function that returns the ``perf`` fixture's value; set once a perf case is selected."""


def perf_for(request: pytest.FixtureRequest, device: torch.device) -> Perf:
    """Return the value of the ``perf`` fixture.

    Raises:
        UsageError: the test got the fixture by ``getfixturevalue``, so that the measuring code was not loaded.
    """
    found = request.config.stash.get(PERF_FOR, None)
    if found is None:
        raise UsageError(
            f"{request.node.nodeid} got the perf fixture by getfixturevalue(), unseen by collection",
            "name perf among the test's arguments, or mark the test @pytest.mark.perf",
        )
    return found(request.node, device)


def device_of(config: pytest.Config) -> torch.device:
    """Return the session's device; for a case that is being predicted, the device that represents its GPU."""
    faking = config.stash.get(FAKING, None)
    if faking is not None:
        return faking.device()
    return resolve_device(settings_of(config).device, worker_number(config))


def rank_here() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: of its group, or as ``torchrun`` started it; else 0 and 1."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return launched() or (0, 1)
    return distributed.get_rank(), distributed.get_world_size()


@contextlib.contextmanager
def group_here(device: torch.device) -> Iterator[torch.distributed.ProcessGroup]:
    """Yield the default process group.

    If there is none, one is made for the length of the block: of the ranks that ``torchrun`` has started, or else of
    this process alone.
    """
    from torch import distributed
    from torch.distributed import HashStore  # type: ignore[attr-defined] # public, and not in __all__

    is_made_here = not distributed.is_initialized()
    backend = "nccl" if device.type == "cuda" else "gloo"
    if is_made_here and launched() is not None:
        join_launched(backend)
    elif is_made_here:
        distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        group = distributed.group.WORLD
        assert group is not None
        yield group
    finally:
        if is_made_here:
            leave()


def warmup_on(request: pytest.FixtureRequest, device: torch.device) -> Callable[..., Warmup]:
    """Return the value of the ``warmup`` fixture."""
    from perflab.measure.calls.workload import Workload
    from perflab.measure.stopping import Warmup, warm_up
    from perflab.measurement.measurement import stopwatch_for

    plan = settings_of(request.config).plan

    def warm(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Warmup:
        workload = Workload(fn, args, kwargs)
        if request.config.stash.get(FAKING, None) or request.node.stash.get(RUNS_ONCE, False):
            workload.run()
            return Warmup(calls=1, settled=None, repetitions=1)
        stopwatch = stopwatch_for(device)
        with current_device(device):
            return warm_up(partial(stopwatch.time, workload), plan, lambda _: None)

    return warm


def snapshots_of(
    request: pytest.FixtureRequest, device: torch.device
) -> Callable[..., contextlib.AbstractContextManager[MemorySnapshot]]:
    """Return the value of the ``memory_snapshot`` fixture."""
    from perflab.attribution.reachable import in_hands_of
    from perflab.measure.memory.histories import record_memory
    from perflab.running.config.folder import file_name_for, own_place

    def snapshot(name: str = "snapshot") -> contextlib.AbstractContextManager[MemorySnapshot]:
        folder = own_place(request.config.rootpath, "snapshots")
        path = folder / f"{file_name_for(case_id(request.node))}-{file_name_for(name)}"
        faking = request.config.stash.get(FAKING, None)
        if faking is not None:
            return faking.record_memory(path)
        return record_memory(path, device, partial(in_hands_of, sys._getframe(1)))

    return snapshot
