"""Finds tensors that two streams use in no defined order, or that are freed while another stream may use them.

The search covers PyTorch's dispatcher, events, streams and allocator. A Triton kernel is covered if an operator
launches it (``torch.library.triton_op``). Not covered: a Triton kernel launched outside of operators, and work that an
extension does by itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from perflab.base.user_lines import line_of
from perflab.internals.of_torch import TorchDispatchMode
from perflab.internals.of_torch.dispatch import without_torch_function
from perflab.internals.of_torch.machine import watch_streams
from perflab.internals.of_torch.tracing import parts_of
from perflab.predicted.dry_run.order import Access, Order
from perflab.predicted.trace.operators import (
    COLLECTIVE,
    FUNCTIONAL,
    are_of_many_ranks,
    is_operator,
    kind_of,
    tensors_in,
)
from perflab.results.predicted import Race

_DEPTH = 4
"""The most lines of a call stack."""


@contextlib.contextmanager
def finding_races(found: list[Race]) -> Iterator[None]:
    """Add the races within the block to ``found``, equal ones once."""

    def note(what: str, before: Access, now: Access | tuple[str, ...]) -> None:
        one = Race(
            what=what,
            first=f"{before.operator} on stream {_number(before.stream)}",
            first_lines=list(before.stack),
            second=f"{now.operator} on stream {_number(now.stream)}" if isinstance(now, Access) else "",
            second_lines=list(now.stack if isinstance(now, Access) else now),
        )
        if one not in found:
            found.append(one)

    watch = _watch()
    watch.order = Order(note)
    try:
        with _Accesses(watch.order):
            yield
    finally:
        watch.order = None


class _Accesses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, order: Order) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._order = order

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if are_of_many_ranks(types):
            return NotImplemented
        kwargs = kwargs or {}
        with without_torch_function():
            self._order.begin()
            result = func(*args, **kwargs)
            if is_operator(func):
                self._note(func, args, kwargs, result)
        return result

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        kind = kind_of(func)
        if kind.name == "aten::record_stream":
            self._order.keep_for(_storage(args[0]), _address(args[1]))
            return
        if kind.is_view or not kind.launches:
            return
        written = [
            *(args[at] for at in kind.writes if at < len(args)),
            *(kwargs.get(name) for name in kind.writes_by_name),
        ]
        writes = {_places(one) for one in _on_cuda([written, result])}
        reads = {_places(one) for one in _on_cuda([args, kwargs.values()])} - writes
        if reads or writes:
            # NCCL has streams of its own, which wait for the current one before a collective is queued there, and
            # record an event after it.
            waits = self._order.waits if kind.name.startswith((COLLECTIVE, FUNCTIONAL)) else []
            stream = waits[-1] if waits else torch.cuda.current_stream().cuda_stream
            self._order.launch(stream, kind.name, _stack(sys._getframe(2)), reads, writes)
            if waits:
                self._order.record_again(stream)


class _Watch:
    """Passes PyTorch's callbacks on streams, events and memory to the current ``Order``, if there is one.

    The callbacks are registered once per process, since PyTorch cannot unregister them.
    """

    def __init__(self) -> None:
        self.order: Order | None = None
        watch_streams(
            {
                "event_record": lambda event, stream: self._tell("record", event, stream),
                "event_wait": lambda event, stream: self._tell("wait", event, stream),
                "event_synchronization": lambda event: self._tell("host_waits_for_event", event),
                "stream_synchronization": lambda stream: self._tell("host_waits_for_stream", stream),
                "device_synchronization": lambda *_: self._tell("host_waits"),
                "memory_allocation": lambda storage: self._tell(
                    "allocate", storage, torch.cuda.current_stream().cuda_stream
                ),
                "memory_deallocation": lambda storage: self._tell("free", storage, _here),
            }
        )

    def _tell(self, what: str, *arguments: Any) -> None:
        if self.order is not None:
            getattr(self.order, what)(*arguments)


@cache
def _watch() -> _Watch:
    return _Watch()


def _on_cuda(values: Any) -> Iterable[Tensor]:
    parts = chain.from_iterable(map(parts_of, tensors_in(values)))
    return (one for one in parts if one.is_cuda and one.layout is torch.strided)


def _places(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), _storage(tensor)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _address(stream: torch.Stream) -> int:
    """Return the CUDA address of a stream that the dispatcher passes."""
    known = torch.cuda.Stream(  # type: ignore[no-untyped-call]
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    return int(known.cuda_stream)


def _here() -> tuple[str, ...]:
    return _stack(sys._getframe(1))


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    """Return the user's lines from a frame outwards up to the test, or ``backward`` if there are none."""
    lines: list[str] = []
    while frame is not None and len(lines) < _DEPTH:
        if "/_pytest/" in frame.f_code.co_filename:
            break
        line = line_of(frame, only=True)
        if line:
            lines.append(line)
        frame = frame.f_back
    return tuple(lines) or ("backward",)


_numbers: dict[int, int] = {0: 0}


def _number(stream: int) -> int:
    """Return the number that is shown for a stream: 0 for the default stream, others in the order of appearance."""
    return _numbers.setdefault(stream, len(_numbers))
