"""Detects workloads whose calls differ: held memory grows, the input changes, or later calls find nothing to do.

The first call's result is compared with the last one's. So is what the callable holds and names before its first call,
after that call, after warm-up, and around the last call. Whatever the first call sets up, or settles during warm-up,
is no difference: a container that the first call empties is used up only if later calls return something else, or do
nothing that is counted. Calls that draw batches from several workers of a ``DataLoader`` always count as different:
which batches arrive in a call is up to the scheduler, and two calls that are alike by chance would become a baseline.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any

from perflab.attribution.held import held_bytes
from perflab.base.data import changed
from perflab.internals.lookup import switched_off
from perflab.internals.of_torch.loaders import workers_noted
from perflab.internals.of_torch.tracing import version_of
from perflab.measure.calls.workload import Workload, Wrapped
from perflab.results.measurement import Memory
from perflab.units import format_bytes

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_CONTAINERS = (list, dict, set, deque)
_PARTS_SHOWN = 4
_SETTLED_CALLS = 3
"""Number of calls after which memory has settled: ``torch.compile`` records its CUDA graphs in the second call."""


class Watched(Wrapped):
    """A workload that observes its first call and its last ones, to compare whether they were alike."""

    def __init__(self, inner: Workload, device: torch.device) -> None:
        super().__init__(inner)
        self._device = device
        self._before = _left(self.roots)
        self._first: str | None = None
        self._after_first: dict[str, object] | None = None
        self._held_bytes: list[int] = []
        self._workers: set[int] = set()

    def run(self, after_phase: Callable[[], None] = lambda: None) -> Any:
        """Do the work once and return its result; note the form of the first result, and what the roots hold then."""
        with workers_noted() as workers:
            result = self.inner.run(after_phase)
        self._workers |= workers
        if self._first is None:
            self._first, self._after_first = _form(result), _left(self.roots)
        return result

    def look(self, calls: int = _SETTLED_CALLS) -> int:
        """Return the bytes held after ``calls`` calls; record them if ``calls`` is at least ``_SETTLED_CALLS``.

        The next call is made ready first, so that its fresh arguments count, and not what a call has made of them.
        """
        self.make_ready(1)
        held = held_bytes(self.roots, self._device)
        self._held_bytes += [held] if calls >= _SETTLED_CALLS else []
        return held

    def look_early(self, calls: int) -> None:
        """Call ``look`` after ``calls`` warm-up calls; if this PyTorch does not allow that, ``weigh`` says so later."""
        try:
            self.look(calls)
        except Exception as error:
            if switched_off(error) is None:
                raise

    def compared(self, memory: Memory, result: Any, counted: Sequence[dict[str, int]]) -> Memory:
        """Return ``memory`` with the differences between the calls filled in.

        ``result`` is the last call's result, and ``counted`` holds the counts of each counted call.
        """
        self.look()
        now, last, once = _left(self.roots), _form(result), self._after_first or {}
        idle = self._first != last or (bool(counted) and not any(value for one in counted for value in one.values()))
        empty = [name for name, before in self._before.items() if before and now.get(name) == 0]
        used = [f"{name} is used up" for name in empty if idle or once.get(name) != 0]
        used_up, said = bool(used), [*memory.calls_differ, *used]
        least, most = min(self._held_bytes), max(self._held_bytes)
        if least != most:
            said.append(f"held memory differs ({format_bytes(least)} to {format_bytes(most)})")
        said += [f"batches of {count} workers arrive in any order" for count in sorted(self._workers) if count > 1]
        if self._first != last:
            said.append(f"the first call returned {self._first}, and the last {last}")
            used_up |= last == "None" or last.endswith(" of 0")
        lowest = {"memory": least} if said else {}
        for name in counted[0] if counted else ():
            values = sorted({one.get(name, 0) for one in counted})
            said += [f"{name.replace('_', ' ')} differ ({values[0]:,} to {values[-1]:,})"] if values[1:] else []
            lowest |= {name: values[0]} if values[1:] or "memory" in lowest else {}
        if said:
            others = [name for name, before in self._before.items() if now.get(name, before) not in (before, 0)]
            said += [f"{name} is changed by each call" for name in others]
        return changed(memory, calls_differ=said, least=lowest, used_up=used_up)


def _left(roots: tuple[Any, ...]) -> dict[str, object]:
    """Map each name to a value that shows changes: what is left of a container or iterator, or a tensor's version.

    Tensors that require gradients are left out. Only types are inspected, never the objects themselves: an object of
    a user's own class may not answer.
    """
    import torch

    found: dict[str, object] = {}
    for name, value in _named(roots):
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            found |= {} if value.requires_grad else {name: (version_of(value),)}
        elif kind is types.GeneratorType:
            found[name] = int(value.gi_frame is not None)
        elif kind in _CONTAINERS or (kind.__module__ == "builtins" and issubclass(kind, Iterator)):
            found[name] = length_hint(value, 1)  # many iterators do not tell their length
    return found


def _named(roots: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments, the variables that a function names, and the attributes of its object, each with its name.

    Attributes of an ``nn.Module`` or of a Python module are left out.
    """
    import torch

    for root in roots:
        if type(root) is tuple:
            yield from ((f"argument {number}", one) for number, one in enumerate(root, 1))
            continue
        own = root.__self__ if type(root) in (types.MethodType, types.BuiltinMethodType) else root
        if type(own) is dict:
            yield from own.items()
        elif type(own).__dictoffset__ and not issubclass(type(own), torch.nn.Module | types.ModuleType):
            yield from vars(own).items()
        if type(root) in (types.FunctionType, types.MethodType):
            with contextlib.suppress(TypeError, ValueError):  # a variable has no value yet
                variables = inspect.getclosurevars(root)
                yield from {**variables.globals, **variables.nonlocals}.items()


def _form(value: Any, parts: int = _PARTS_SHOWN) -> str:
    """Describe a result without its numbers: ``float32 (2, 3)``, ``list of 2: number, None``."""
    import torch

    kind = type(value)
    if issubclass(kind, torch.Tensor):
        is_plain = value.layout is torch.strided and not value.is_nested  # a nested shape has symbols, new each time
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape) if is_plain else value.layout}"
    base: Any = next((one for one in (*_CONTAINERS, tuple) if issubclass(kind, one)), None)
    if base is not None:
        inner = [_form(one, 0) for one in islice(dict.values(value) if base is dict else base.__iter__(value), parts)]
        return f"{kind.__name__} of {base.__len__(value)}{': ' * bool(inner)}{', '.join(inner)}"
    if issubclass(kind, int | float | complex):
        return "number"
    return "None" if value is None else kind.__name__
