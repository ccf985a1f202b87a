"""Finds the objects that hold the tensors which a call keeps, and the line that puts the tensors there.

After one call, each new tensor is followed through new objects to a holder, an object that existed before the call: a
list, a dict, an object, a closure's variable. Python's own tracing of a later call then shows after which lines the
holder has changed, so an append in a hook is found as well as one in the training loop.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perflab.attribution.held import storages_of
from perflab.attribution.reachable import collector_off
from perflab.base.user_lines import line_of, shown_file
from perflab.measure.machine.devices import synchronize
from perflab.results.peak import Keeper

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_DEPTH = 6
"""The greatest number of references between a tensor and its holder, and between the holder and a name."""
_MOST = 8
"""The greatest number of holders that are watched: each is checked after every line."""
_GROWS = (list, set, deque)
_OURS, _LIKE_A_USERS = "perflab.", "perflab.lab."


@dataclass
class _Held:
    """A holder: an object that existed before the call, with something new in it."""

    holder: Any
    slot: Any
    """The dict's key or the attribute's name at which a new object was found; None for a list, set or deque."""
    size_bytes: int = 0
    has_graph: bool = False

    def state(self) -> object:
        """Return a value that changes if something else is put into the holder."""
        held = self.holder
        if type(held) is types.CellType:
            return id(held.cell_contents)
        if isinstance(held, dict):  # a further key, or another value at this key
            return len(held), id(dict.get(held, self.slot))
        if self.slot is not None:
            return id(vars(held).get(self.slot))
        return (len(held), *(id(held[at]) for at in (0, -1) if held and not isinstance(held, set)))

    @property
    def many(self) -> int:
        """The number of entries of a container; 0: the holder is an object or a variable."""
        return len(self.holder) if isinstance(self.holder, (*_GROWS, dict)) and not _has_owner(self.holder) else 0


def take_keepers(workload: Workload, device: torch.device) -> list[Keeper]:
    """Return the holders of the tensors that each call of a warm workload keeps, and the line that puts tensors there.

    Containers that grow come first, then holders of tensors with an autograd graph, then those with the most bytes.

    Raises:
        Exception: whatever the workload raises.
    """
    with collector_off():
        held = sorted(_held_after(workload, device), key=lambda one: (-one.has_graph, -one.size_bytes))[:_MOST]
        if not held:
            return []
        workload.make_ready(1)
        before = [one.many for one in held]
        lines = _lines_that_change(workload, held)
        found = [
            Keeper(
                line=line,
                holder=_name(one.holder) if one.many else _within(one.holder, one.slot),
                kind=type(one.holder).__name__ if one.many else "",
                many=one.many,
                grows=one.many > many,
            )
            for one, line, many in zip(held, lines, before, strict=True)
        ]
        return sorted(found, key=lambda one: not one.grows)


def _held_after(workload: Workload, device: torch.device) -> Iterator[_Held]:
    """Run one call and yield the holders of its new tensors."""
    synchronize(device)
    gc.collect()
    # Objects but tensors are kept alive meanwhile, so that no new object gets an old one's address. Tensors may go.
    tensors, before = _tensors_and_others()
    old_tensors = {id(one): weakref.ref(one) for one in tensors}
    del tensors
    old = {id(one) for one in before}
    workload.make_ready(1)
    workload.run()
    synchronize(device)
    gc.collect()
    new = [one for one in _tensors_and_others()[0] if (known := old_tensors.get(id(one))) is None or known() is not one]
    ours = {id(before), id(new), id(old_tensors)}
    found: dict[tuple[int, object], _Held] = {}
    for tensor in new:
        for holder, slot in _holders(tensor, old, ours):
            place = slot if _has_owner(holder) or not isinstance(holder, dict) else None
            one = found.setdefault((id(holder), place), _Held(holder, slot))
            one.size_bytes += sum(size for _, size in storages_of(tensor, device))
            one.has_graph |= tensor.grad_fn is not None
    yield from found.values()


def _tensors_and_others() -> tuple[list[Any], list[Any]]:
    """Return the tensors and the other objects that Python's garbage collector tracks, without frames.

    Each type is checked once, since objects are many.
    """
    import torch

    found = gc.get_objects()
    kinds = {kind: issubclass(kind, torch.Tensor) for kind in set(map(type, found))}
    tensors = [one for one in found if kinds[type(one)]]
    return tensors, [one for one in found if not kinds[type(one)] and type(one) is not types.FrameType]


def _holders(tensor: Any, old: set[int], ours: set[int]) -> list[tuple[Any, Any]]:
    """Return the nearest objects above a new tensor that existed before the call.

    Each object comes with the place in it, a key or a name, that leads to the tensor.
    """
    found: list[tuple[Any, Any]] = []
    level, seen = [tensor], set(ours)
    for _ in range(_DEPTH):
        above: list[Any] = []
        seen |= {id(level), id(above), id(found)}
        for one in level:
            for holder in _referrers(one, seen):
                # The dict of an old object's attributes may be new: Python makes such dicts when it needs them.
                is_old = id(holder) in old or (type(holder) is dict and any(id(by) in old for by in _owners(holder)))
                if not is_old:
                    above.append(holder)
                elif not _is_ours(holder) and (place := _place(holder, one)) is not _NOWHERE:
                    found.append((holder, place))
            seen.add(id(one))
        if found or not above:
            break
        level = above
    return found


def _referrers(one: Any, seen: set[int]) -> list[Any]:
    """Return the objects that refer to an object, without frames, generators and those whose ``id`` is in ``seen``."""
    found = gc.get_referrers(one)
    return [
        each for each in found if id(each) not in seen and not isinstance(each, types.FrameType | types.GeneratorType)
    ]


_NOWHERE = object()


def _place(holder: Any, one: Any) -> Any:
    """Return the place of an object in its holder: a key, an attribute's name, or None in a list, set or deque.

    Return ``_NOWHERE`` if ``holder`` does not hold the object in one of these ways.
    """
    if isinstance(holder, _GROWS):
        return None
    if isinstance(holder, dict):
        return next((key for key, value in dict.items(holder) if value is one), _NOWHERE)
    if type(holder) is types.CellType:
        return "cell_contents"
    attributes = getattr(holder, "__dict__", None)
    if type(attributes) is not dict:
        return _NOWHERE
    return next((name for name, value in attributes.items() if value is one), _NOWHERE)


def _lines_that_change(workload: Workload, held: Sequence[_Held]) -> list[str]:
    """Return for each holder the user's line after which it most often changed in a call; ``""`` if none was seen."""
    changes: list[Counter[str]] = [Counter() for _ in held]
    states = [one.state() for one in held]
    watched: dict[types.CodeType, bool] = {}
    current = ""
    registered: dict[int, str] = {}
    references = [sys.getrefcount(one.holder) for one in held]

    def look() -> None:
        for at, one in enumerate(held):
            before, references[at] = references[at], sys.getrefcount(one.holder)
            is_more = references[at] > before and isinstance(one.holder, _GROWS)
            if is_more and any(  # no name holds the referrers: one of them may be the next holder
                type(by) is types.BuiltinMethodType and by.__self__ is one.holder for by in gc.get_referrers(one.holder)
            ):
                registered[at] = current  # ``register_hook(kept.append)`` runs no line of Python
            try:
                state = one.state()
            except (ValueError, RuntimeError):  # an empty cell; a dict that is being changed
                continue
            if state != states[at]:
                states[at] = state
                changes[at][registered.get(at, current)] += 1

    def local(frame: types.FrameType, event: str, _: Any) -> Any:
        nonlocal current
        look()
        if event == "line":
            current = line_of(frame, only=True)
        elif event == "return":
            current = line_of(frame.f_back)
        return local

    def on_call(frame: types.FrameType, _event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in watched:
            watched[code] = shown_file(code.co_filename) is not None
        return local if watched[code] else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        workload.run()
    finally:
        sys.settrace(before)
    look()
    return [max(one, key=lambda line: one[line], default="") for one in changes]


def _name(value: Any, depth: int = _DEPTH) -> str:
    """Return the name by which the user's code knows an object; empty if the object has none."""
    names = []
    for holder in _referrers(value, set()) if depth else ():
        if isinstance(holder, (*_GROWS, tuple, types.FunctionType)) or _is_ours(holder):
            continue
        place = _place(holder, value)
        if isinstance(place, str | int) and (name := _within(holder, place, depth - 1)):
            names.append(name)
    return min(names, key=lambda name: (name.count("["), name.count(" "), len(name)), default="")


def _is_ours(holder: Any) -> bool:
    owners = _owners(holder) if type(holder) is dict else (holder,)
    modules = [one.__name__ if isinstance(one, types.ModuleType) else type(one).__module__ or "" for one in owners]
    return any(one.startswith(_OURS) and not one.startswith(_LIKE_A_USERS) for one in modules)


def _has_owner(holder: Any) -> bool:
    """Whether an object is a dict of attributes or of variables."""
    return type(holder) is dict and next(_owners(holder), None) is not None


def _within(holder: Any, place: Any, depth: int = _DEPTH) -> str:
    """Name a place in an object: ``train.HISTORY``, ``Training.last``, or ``kept of watch`` for a variable."""
    if type(holder) is types.CellType:
        return next(_variables(holder), "")
    if not isinstance(holder, dict):
        return f"{type(holder).__qualname__}.{place}"
    for owner in _owners(holder):
        if isinstance(owner, types.ModuleType):
            return f"{owner.__name__}.{place}"
        return f"{(owner if isinstance(owner, type) else type(owner)).__qualname__}.{place}"
    if "__name__" in holder and "__builtins__" in holder:  # variables of a module that is not loaded under its name
        return f"{holder['__name__']}.{place}"
    name = _name(holder, depth)
    return f"{name}[{place!r}]" if name else ""


def _owners(attributes: dict[Any, Any]) -> Iterator[Any]:
    """Yield the module, class or object whose attributes a dict has."""
    for one in gc.get_referrers(attributes):
        if isinstance(one, type) or (type(one).__dictoffset__ and getattr(one, "__dict__", None) is attributes):
            yield one


def _variables(cell: types.CellType) -> Iterator[str]:
    """Yield the name of the variable that a cell is, in each function that has the cell: ``kept of watch``."""
    for closure in gc.get_referrers(cell):
        if type(closure) is tuple:
            for function in gc.get_referrers(closure):
                if isinstance(function, types.FunctionType) and function.__closure__ is closure:
                    name = function.__code__.co_freevars[next(at for at, one in enumerate(closure) if one is cell)]
                    yield f"{name} of {function.__qualname__.rpartition('<locals>.')[2]}"
