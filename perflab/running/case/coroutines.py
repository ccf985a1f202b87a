"""Runs coroutine functions: measured ones on the case's own loop, and ``async def`` tests that no other plugin runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from perflab.base.errors import UsageError
from perflab.measure.calls.workload import Workload
from perflab.running.config.kinds import is_perf_case

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


def is_coroutine_function(fn: object) -> bool:
    """Whether a call of ``fn`` must be awaited: an ``async def``, bound, partial, or as an object's ``__call__``."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


@contextlib.contextmanager
def awaited(*workloads: Workload) -> Iterator[None]:
    """Run calls of coroutine functions to their end within the block, all on one loop that the block creates.

    In an ``async def`` test, the test's own running loop is suspended for the block, since loops cannot be nested.

    Raises:
        UsageError: the test runs on trio.
    """
    found = [one for one in workloads if not one.phases and is_coroutine_function(one.roots[0])]
    if not found:
        yield
        return
    if _is_on_trio():
        raise UsageError(
            "perf got a coroutine function in a test that runs on trio; perf runs them on asyncio",
            "choose asyncio for the test: @pytest.mark.parametrize('anyio_backend', ['asyncio'])",
        )
    with _outside_of_the_running_loop(), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        for workload in found:
            workload.replace_calls(functools.partial(_run, runner.get_loop(), workload.roots[0]))
        yield


def _is_on_trio() -> bool:
    """Whether the caller runs on trio. ``in_trio_run`` would say so too, from trio 0.23 on."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:  # there is none
        return False
    return True


def _run(
    loop: asyncio.AbstractEventLoop, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any
) -> Any:
    return loop.run_until_complete(fn(*args, **kwargs))


@contextlib.contextmanager
def _outside_of_the_running_loop() -> Iterator[None]:
    """Suspend this thread's running loop within the block, so that another loop can run."""
    running = asyncio._get_running_loop()
    if running is None:
        yield
        return
    task = asyncio.current_task(running)
    if task is not None:
        asyncio.tasks._leave_task(running, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)
        if task is not None:
            asyncio.tasks._enter_task(running, task)


class AsyncTests:
    """Runs perf cases that are coroutine functions, if no other plugin for such tests does."""

    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run the test to its end on a new event loop; plugins that run such tests take precedence."""
        test = pyfuncitem.obj
        if not (is_perf_case(pyfuncitem) and inspect.iscoroutinefunction(test)):
            return None
        names = inspect.signature(test).parameters
        asyncio.run(test(**{name: value for name, value in pyfuncitem.funcargs.items() if name in names}))
        return True
