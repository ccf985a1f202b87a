"""What autograd keeps for the backward: the bytes of each storage, counted once. Unlike a peak, nothing passing by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Saved:
    """What was saved so far, by address."""

    storages: dict[int, int] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Each storage counted once."""
        return sum(self.storages.values())

    def bytes_without(self, tensors: Iterable[Tensor]) -> int:
        """The same without what these tensors lie in, such as the parameters: they would be there anyway."""
        known = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        return sum(size for address, size in self.storages.items() if address not in known)


@contextmanager
def saved_for_backward() -> Iterator[Saved]:
    """Notes what the block saves. What it saves has to be alive as long as it lasts: addresses are used again."""
    saved = Saved()

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved.storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield saved
