"""Which blocks are parameters, gradients, optimizer state: asked of the objects, by pointer, while a recorder runs."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perflab.measure.live_tensors import held_storages
from perflab.profiles.held import held_by_address
from perflab.profiles.places import module_names
from perflab.reachable import reachable

if TYPE_CHECKING:
    import torch

    from perflab.profiles.records import PeakPart


class KnownBlocks:
    """What a callable holds, asked before it runs, and of its modules and optimizers again in between.

    Nothing is kept alive: a gradient, an input or a model that the call lets go is to be let go in a recording, too.
    """

    def __init__(self, roots: tuple[Any, ...], device: torch.device) -> None:
        import torch

        found = list(reachable(roots))
        self.names = module_names(found, is_numbered=True)
        """Of modules, by ``id``: ``blocks.3.attention``."""
        self.held = held_by_address(found, self.names, device)
        """By address, what there is before the call."""
        self.is_compiled = any(map(_is_compiled, found))
        self._device = device
        self._modules = [weakref.ref(one) for one in found if isinstance(one, torch.nn.Module)]
        self._optimizers = [weakref.ref(one) for one in found if isinstance(one, torch.optim.Optimizer)]

    def ask_again(self) -> None:
        """Ask modules and optimizers what they have by now, before the call that counts; inputs are the same."""
        self.held = {address: part for address, part in self.held.items() if part.category == "inputs"} | self.now()

    def now(self) -> dict[int, PeakPart]:
        """By address, what modules and optimizers have at this moment."""
        return held_by_address(list(self._reached()), self.names, self._device)

    def storages(self, result: Any) -> dict[int, int]:
        """By address, the sizes of what a result is made of."""
        return held_storages(reachable((result,)), self._device)

    def _reached(self) -> Iterator[Any]:
        modules = [module for kept in self._modules if (module := kept()) is not None]
        optimizers = [optimizer for kept in self._optimizers if (optimizer := kept()) is not None]
        yield from modules
        yield from optimizers
        for module in modules:
            yield from module.buffers(recurse=False)
            for parameter in module.parameters(recurse=False):
                yield from _with_gradient(parameter)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield from _with_gradient(parameter)
            for state in optimizer.state.values():
                yield from state.values() if isinstance(state, dict) else ()


@dataclass
class Looks:
    """The answers of the objects, in order, and what notes when each was given."""

    known: KnownBlocks
    mark: Callable[[int], None]
    """Is called with the number of an answer when it has been given."""
    taken: list[Mapping[int, PeakPart]] = field(default_factory=list)
    result: tuple[int, Sequence[int]] | None = None
    """The number of the answer that was given while the call's result was there, and the result's addresses."""

    def look(self) -> None:
        """Ask."""
        self.taken.append(self.known.now())
        self.mark(len(self.taken) - 1)

    def look_anew(self, known: KnownBlocks) -> None:
        """Take what the code has in its hands at the end. What nothing owns may be results as well as inputs."""
        self.known.names = {**known.names, **self.known.names}
        self.taken.append({address: part for address, part in known.held.items() if part.category != "inputs"})

    def look_at_result(self, result: Any) -> None:
        """Ask, while the call's result is still there, and where the result itself lies."""
        self.look()
        self.result = len(self.taken) - 1, [*self.known.storages(result)]

    def as_notes(self, moments: Sequence[int]) -> dict[str, Any]:
        """As they are written, with the moment of each.

        ``looks`` are ``[moment, [[address, category, module], ...]]``; ``returned`` is ``[moment, [address, ...]]``.
        """
        looks = [
            [moment, [[address, part.category, part.module] for address, part in parts.items()]]
            for moment, parts in zip(moments, self.taken, strict=True)
        ]
        if self.result is None:
            return {"looks": looks}
        number, addresses = self.result
        return {"looks": looks, "returned": [moments[number], addresses]}


@dataclass
class History:
    """What a recorder saw of a block of code."""

    looks: Looks
    peak_bytes: int | None = None
    """Highest rise of live bytes above the level at the block's beginning; there once the block has ended."""


def _with_gradient(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    yield parameter
    if parameter.is_leaf and parameter.grad is not None:
        yield parameter.grad


def _is_compiled(one: Any) -> bool:
    """Whether ``torch.compile`` made it: what is hooked on to modules would make it compile again."""
    import torch

    if isinstance(one, types.FunctionType):
        return "_torchdynamo_orig_callable" in vars(one)
    if type(one).__name__ == "OptimizedModule":
        return True
    return isinstance(one, torch.nn.Module) and vars(one).get("_compiled_call_impl") is not None
