"""Reports to a watch the operators that no tracer sees: those of warm-up and set-up."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from perflab.internals.of_torch import TorchDispatchMode
from perflab.internals.of_torch.dispatch import without_torch_function
from perflab.predicted.trace.operators import is_operator
from perflab.predicted.trace.watch import Watch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


def watched(watch: Watch | None) -> AbstractContextManager[object]:
    """Return a context in which each operator is reported to the watch, if there is one."""
    return _Watched(watch) if watch is not None else nullcontext()


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that reports every operator to a watch and calls the operator unchanged."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_operator(func):  # not C++'s questions for a tensor's device, where nothing may be raised
            self._watch.operator()
        with without_torch_function():  # as in a trace, without users' __torch_function__
            return func(*args, **(kwargs or {}))
