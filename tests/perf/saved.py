"""What autograd keeps for the backward: the bytes of each storage, counted once. Unlike a peak, nothing passing by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Saved:
    """What was saved, by address; and what of it is weights, or casts of weights as autocast makes them."""

    storages: dict[int, int] = field(default_factory=dict)
    weights: set[int] = field(default_factory=set)
    casts: set[int] = field(default_factory=set)

    @property
    def total_bytes(self) -> int:
        """Each storage counted once."""
        return sum(self.storages.values())

    @property
    def weight_copies_bytes(self) -> int:
        """Weights that were cast, as far as they are kept."""
        return self._sum(self.casts)

    @property
    def activations_bytes(self) -> int:
        """What is neither a weight, which would be there anyway, nor a cast of one."""
        return self.total_bytes - self._sum(self.weights) - self._sum(self.casts)

    def _sum(self, addresses: set[int]) -> int:
        return sum(self.storages[address] for address in addresses & self.storages.keys())


@contextmanager
def saved_for_backward(weights: Iterable[Tensor] = ()) -> Iterator[Saved]:
    """Notes what the block saves. What it saves has to be alive until it is read: addresses are used again."""
    saved = Saved(weights={_address(weight) for weight in weights})

    def note(tensor: Tensor) -> Tensor:
        saved.storages[_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), _Casts(saved) as casts:
        yield saved
        saved.casts = {_address(cast) for cast in casts.made}


class _Casts(TorchDispatchMode):
    """Sees casts of the weights, and keeps them, so that nothing else gets their addresses."""

    def __init__(self, saved: Saved) -> None:
        super().__init__()
        self.made: list[Tensor] = []
        self._weights = saved.weights

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and _address(args[0]) in self._weights:
            self.made.append(out)
        return out


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # a fake tensor has no place in memory, but this it has
