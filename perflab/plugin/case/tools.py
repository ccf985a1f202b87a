"""The implementation of the fixtures; loaded when a test uses the first of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from perflab.errors import UsageError
from perflab.measure.devices import current_device, resolve_device
from perflab.plugin.noting import case_id
from perflab.plugin.stash import FAKING, PERF_FOR, RUNS_ONCE, settings_of, worker_number

if TYPE_CHECKING:
    import torch

    from perflab.measure.memory_snapshot import MemorySnapshot
    from perflab.measure.sampling import Warmup
    from perflab.plugin.case.perf import Perf


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


def warmup_on(request: pytest.FixtureRequest, device: torch.device) -> Callable[..., Warmup]:
    """Return the value of the ``warmup`` fixture."""
    from perflab.measure.measurement import stopwatch_for
    from perflab.measure.sampling import Warmup, warm_up
    from perflab.measure.workload import Workload

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
    from perflab.measure.memory_snapshot import record_memory
    from perflab.plugin.session.folder import file_name_for, own_folder
    from perflab.reachable import in_hands_of

    def snapshot(name: str = "snapshot") -> contextlib.AbstractContextManager[MemorySnapshot]:
        folder = own_folder(request.config.rootpath) / "snapshots"
        path = folder / f"{file_name_for(case_id(request.node))}-{file_name_for(name)}"
        faking = request.config.stash.get(FAKING, None)
        if faking is not None:
            return faking.record_memory(path)
        return record_memory(path, device, partial(in_hands_of, sys._getframe(1)))

    return snapshot
