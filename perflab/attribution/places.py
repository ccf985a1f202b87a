"""Marks the modules and the lines that call operators, by ranges that the profiler records."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from perflab.base.user_lines import called_from, line_of, stack_of
from perflab.internals.of_torch.dispatch import is_function_mode_on, opens_or_closes_range
from perflab.internals.of_torch.patched import backward_run_by

if TYPE_CHECKING:
    from torch import nn

MARK = "perflab: place "
"""The beginning of a range's name; the number of a place follows."""


class Where(NamedTuple):
    """The place from which an operator was called."""

    module: str = ""
    line: str = ""
    stack: tuple[str, ...] = ()
    """The line and its callers, the innermost first; empty if stacks were not requested."""


class Places:
    """The places that the names of ranges stand for."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._modules: list[str] = []
        self._found: list[Where] = []
        self._numbers: dict[Where, int] = {}
        self.called: dict[str, list[str]] = {}
        """The lines that call each module, each with its callers, as in ``Profile.called``."""

    def named(self, range_name: str) -> Where:
        """Return the place that a range's name stands for."""
        return self._found[int(range_name.removeprefix(MARK))]

    @property
    def module(self) -> str:
        """The innermost module that runs; ``""`` outside of modules."""
        return self._modules[-1] if self._modules else ""

    def mark(self, line: str, stack: tuple[str, ...] = ()) -> str:
        """Return the name of a range for a line of the module that runs."""
        where = Where(self.module, line, stack)
        number = self._numbers.setdefault(where, len(self._found))
        if number == len(self._found):
            self._found.append(where)
        return f"{MARK}{number}"

    @contextlib.contextmanager
    def marking(self, *, lines: bool = True, stacks: bool = False) -> Iterator[None]:
        """Mark every call of a module within the block.

        With ``lines``, every call of PyTorch from Python is marked too; with ``stacks``, also the callers of each line.

        Lines are found by a torch function mode. PyTorch's modules check for one, and some leave their fast path if
        they find one.
        """
        import torch
        from torch.overrides import TorchFunctionMode

        places = self

        class Lines(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if opens_or_closes_range(func):  # a mark around the opening would end before the range
                    return func(*args, **(kwargs or {}))
                frame, until = sys._getframe(1), backward.__code__
                stack = stack_of(frame, until=until) if stacks else ()
                mark = places.mark(line_of(frame, until=until), stack)
                with torch.profiler.record_function(mark):
                    return func(*args, **(kwargs or {}))

        def backward(engine: Any, *args: Any, **kwargs: Any) -> Any:
            # Python that runs within the backward, an ``autograd.Function`` or a hook, belongs to its node, and neither
            # to the line that calls the backward nor to that line's module.
            note_call("", sys._getframe(1))
            self._modules.append("")
            try:
                with contextlib.nullcontext() if is_function_mode_on(Lines) else Lines():
                    return engine(*args, **kwargs)
            finally:
                self._modules.pop()

        def note_call(module: str, frame: FrameType) -> None:
            lines = called_from(frame, until=backward.__code__)
            found = self.called.setdefault(module, [])
            if (
                lines and lines not in found and "" not in self._modules
            ):  # a checkpoint's recomputation in a backward is no new call
                found.append(lines)

        entered: list[tuple[nn.Module, Any]] = []

        def enter(module: nn.Module, _: Any) -> None:
            self._modules.append(self._names.get(id(module)) or type(module).__name__)
            note_call(self.module, sys._getframe(1))
            opened = torch.profiler.record_function(self.mark(""))
            opened.__enter__()  # type: ignore[no-untyped-call]
            entered.append((module, opened))

        def leave(module: nn.Module, _args: Any, _result: Any) -> None:
            while entered:  # modules within it that an error has left come first
                left, opened = entered.pop()
                opened.__exit__(None, None, None)
                self._modules.pop()
                if left is module:
                    return

        with contextlib.ExitStack() as stack:
            stack.enter_context(hooked(enter, leave))
            if lines:
                stack.enter_context(Lines())
                stack.enter_context(backward_run_by(backward))
            yield


@contextlib.contextmanager
def hooked(enter: Callable[[nn.Module, Any], None], leave: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
    """Call ``enter`` before every module's forward, and ``leave`` after it, also if the forward raises."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def module_names(found: Iterable[Any], *, is_numbered: bool = False) -> dict[int, str]:
    """Return the names of modules by ``id``: ``blocks.*.attention.q``, with ``*`` for a layer's number.

    Names begin as in ``outermost``. Children of one class in a ``ModuleList`` or ``Sequential`` are layers, whether or
    not they also do the same, which a prediction has to know. ``is_numbered`` keeps the numbers of layers:
    ``blocks.3.attention.q``.
    """
    from torch import nn

    names: dict[int, str] = {}
    for root, prefix in outermost([one for one in found if isinstance(one, nn.Module)]):
        names.setdefault(id(root), prefix)
        _enter(root, prefix, names, is_numbered)
    return names


def outermost(modules: Sequence[nn.Module]) -> list[tuple[nn.Module, str]]:
    """Return the modules that are in no other of these modules, each with the beginning of the names of its modules.

    The largest of them has none (``""``); the others have their classes, numbered where a class repeats.
    """
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    roots = [module for module in modules if id(module) not in inner]
    largest = max(roots, key=lambda root: sum(one.numel() for one in root.parameters()), default=None)
    often = Counter(type(root).__name__ for root in roots if root is not largest)
    seen: Counter[str] = Counter()
    named = []
    for root in roots:
        name = "" if root is largest else type(root).__name__
        seen[name] += 1
        named.append((root, f"{name}{seen[name]}" if often[name] > 1 else name))
    return named


def _enter(module: nn.Module, name: str, names: dict[int, str], is_numbered: bool) -> None:
    from torch import nn

    children = dict(module.named_children())
    kinds = {type(one) for one in children.values()}
    repeats = not is_numbered and isinstance(module, nn.ModuleList | nn.Sequential) and len(kinds) == 1
    for key, child in children.items():
        if id(child) in names:
            continue  # a shared module is named by the first place at which it is met
        own = "*" if repeats and len(children) > 1 else key
        names[id(child)] = f"{name}.{own}" if name else own
        _enter(child, names[id(child)], names, is_numbered)
