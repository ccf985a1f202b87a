"""Tells which memory blocks are parameters, gradients or optimizer state: the objects are asked during a recording."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perflab.attribution.held import held_by_address, held_storages
from perflab.attribution.places import module_names
from perflab.base.reachable import reachable
from perflab.internals.of_torch.compiler import is_compiled

if TYPE_CHECKING:
    import torch

    from perflab.results.peak import PeakPart


class KnownBlocks:
    """The blocks that a callable holds: read before it runs, and for its modules and optimizers again in between.

    Nothing is kept alive: a gradient, an input or a model that the call lets go is freed in a recording, too.
    """

    def __init__(self, roots: tuple[Any, ...], device: torch.device) -> None:
        import torch

        found = list(reachable(roots))
        self.names = module_names(found, is_numbered=True)
        """Names of modules, such as ``blocks.3.attention``, by the module's ``id``."""
        self.held = held_by_address(found, self.names, device)
        """Blocks that exist before the call, by address."""
        self.is_compiled = any(map(is_compiled, found))
        self._device = device
        self._modules = [weakref.ref(one) for one in found if isinstance(one, torch.nn.Module)]
        self._optimizers = [weakref.ref(one) for one in found if isinstance(one, torch.optim.Optimizer)]

    def ask_again(self) -> None:
        """Read again what modules and optimizers hold, before the call that counts; inputs stay as first read."""
        self.held = {address: part for address, part in self.held.items() if part.category == "inputs"} | self.now()

    def now(self) -> dict[int, PeakPart]:
        """Return the blocks that modules and optimizers hold at this moment, by address."""
        return held_by_address(list(self._reached()), self.names, self._device)

    def storages(self, result: Any) -> dict[int, int]:
        """Return the sizes in bytes of a result's storages, by address."""
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
    """The successive answers of the objects about their blocks, and a function that notes when each was given."""

    known: KnownBlocks
    mark: Callable[[int], None]
    """Function that is called with the number of each answer, from 0 on, once the answer has been given."""
    taken: list[Mapping[int, PeakPart]] = field(default_factory=list)
    result: tuple[int, Sequence[int]] | None = None
    """Number of the answer that was given while the call's result existed, and the addresses of the result."""

    def look(self) -> None:
        """Ask modules and optimizers what they hold; keep the answer and mark it."""
        self.taken.append(self.known.now())
        self.mark(len(self.taken) - 1)

    def look_anew(self, known: KnownBlocks) -> None:
        """Keep as an answer what the code holds at the end, without inputs: an unowned block may also be a result."""
        self.known.names = {**known.names, **self.known.names}
        self.taken.append({address: part for address, part in known.held.items() if part.category != "inputs"})

    def look_at_result(self, result: Any) -> None:
        """Ask while the call's result still exists, and keep the addresses of the result."""
        self.look()
        self.result = len(self.taken) - 1, [*self.known.storages(result)]

    def as_notes(self, moments: Sequence[int]) -> dict[str, Any]:
        """Return the answers in the form in which they are written, with the moment of each.

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
    """The recording of a block of code: the answers of the objects, and the peak."""

    looks: Looks
    peak_bytes: int | None = None
    """Highest rise of live bytes above the level at the block's beginning; None until the block has ended."""


def _with_gradient(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    yield parameter
    if parameter.is_leaf and parameter.grad is not None:
        yield parameter.grad
