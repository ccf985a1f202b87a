"""Batches of text: which bytes each holds follows from its number, and on a GPU the next is on its way during this one.

B batch, T sequence, N bytes of text; batch n of seed s holds, in row b,

    text[o : o + T]  with  o = (64 bits of SHAKE-256("s n"), those of b) mod (N - T + 1)

No state leads from one batch to the next, no generator of PyTorch's is asked, and so batch n is the same in every
process, on every device and in every version; a run that goes on at batch n needs to know nothing but n.

On a device with streams (CUDA, ROCm, XPU) a batch is gathered into page-locked memory, copied from there by a stream
of its own while the default stream computes, and widened to int64 on the device: an eighth of the bytes cross the bus.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


class TextLoader:
    """Endless iterator of (B, T) int64 batches of bytes, ids 0 to 255, drawn uniformly from every place of a text.

    Args:
        text: (N,) uint8, such as the `train` of `standard_library_text(folder)`.
        batch_size, seq_len: B and T.
        seed: other batches for another seed.
        start_at: the number of the first batch; another loader's `next_batch` goes on where that one is.
        device: where batches are wanted; `None` is the CPU.

    Raises:
        ValueError: a size is not positive, `start_at` is negative, or the text is not of bytes or is shorter than a
            sequence.
    """

    def __init__(
        self,
        text: Tensor,
        *,
        batch_size: int,
        seq_len: int,
        seed: int = 0,
        start_at: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("seq_len", seq_len, 1), ("start_at", start_at, 0)):
            if value < least:
                raise ValueError(f"{name}={value}: give {name}={least} or more")
        if text.dtype != torch.uint8 or text.ndim != 1:
            raise ValueError(
                f"text of shape {tuple(text.shape)} in {text.dtype}: wanted bytes in a row, (N,) torch.uint8, such as "
                "the train of standard_library_text(folder)"
            )
        if len(text) < seq_len:
            raise ValueError(
                f"text of {len(text)} bytes for sequences of {seq_len}: give more text, or a shorter seq_len"
            )
        self.text = text
        self.batch_size, self.seq_len, self.seed = batch_size, seq_len, seed
        self.device = torch.device("cpu" if device is None else device)
        self.next_batch = start_at
        """Number of the batch that `next` will give."""
        # `meta` has no module at all.
        has_streams = self.device.type != "cpu" and hasattr(getattr(torch, self.device.type, None), "Stream")
        self._ahead = _Ahead(self) if has_streams else None

    def __iter__(self) -> TextLoader:
        return self

    def __next__(self) -> Tensor:
        number, self.next_batch = self.next_batch, self.next_batch + 1
        if self._ahead is not None:
            return self._ahead.take(number)
        batch = torch.empty(self.batch_size, self.seq_len, dtype=torch.int64)
        self.gather(number, batch)
        return batch.to(self.device)

    def offsets(self, number: int) -> list[int]:
        """Return the offset in the text at which each row of batch `number` begins."""
        places = len(self.text) - self.seq_len + 1
        drawn = hashlib.shake_256(f"{self.seed} {number}".encode()).digest(8 * self.batch_size)
        return [int.from_bytes(drawn[8 * row : 8 * row + 8], "little") % places for row in range(self.batch_size)]

    def gather(self, number: int, out: Tensor) -> None:
        """Write batch `number` into `out`, (B, T) of any integer type, on the CPU."""
        for row, offset in zip(out, self.offsets(number), strict=True):
            row.copy_(self.text[offset : offset + self.seq_len])


@dataclass
class _Slot:
    """Page-locked memory for one batch, and when the copy out of it is done."""

    pinned: Tensor  # (B, T) uint8
    copied: torch.Event


class _Ahead:
    """Batches on a device with streams, each set on its way one batch before it is asked for."""

    def __init__(self, loader: TextLoader) -> None:
        self.loader = loader
        self.runtime = torch.get_device_module(loader.device)
        self.stream = self.runtime.Stream(loader.device)
        shape = (loader.batch_size, loader.seq_len)
        # Two: while the copy out of one is under way, the host gathers into the other.
        self.slots = [
            _Slot(torch.empty(shape, dtype=torch.uint8, pin_memory=True), self.runtime.Event()) for _ in range(2)
        ]
        self.under_way: dict[int, Tensor] = {}

    def take(self, number: int) -> Tensor:
        """Batch `number`, ready for the current stream; `number + 1` is under way then."""
        batch = self.under_way.pop(number, None)
        self.under_way.clear()  # of a `next_batch` that was set meanwhile
        if batch is None:
            batch = self.send(number)
        current = self.runtime.current_stream(self.loader.device)
        current.wait_event(self.slots[number % 2].copied)
        # Its memory belongs to the other stream, which must not have it back before this one is done with it.
        batch.record_stream(current)
        self.under_way[number + 1] = self.send(number + 1)
        return batch

    def send(self, number: int) -> Tensor:
        """Gather batch `number` and set its copy on its way; returns where it will be."""
        slot = self.slots[number % 2]
        slot.copied.synchronize()  # the host must not write over what is still being copied
        self.loader.gather(number, slot.pinned)
        with self.runtime.stream(self.stream):
            batch = slot.pinned.to(self.loader.device, non_blocking=True).to(torch.int64)
            slot.copied.record(self.stream)
        return batch
