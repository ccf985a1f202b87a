"""A cache of keys and values: what attention saw of each sequence so far, so that a token costs one row of work.

B sequences, T new tokens of each, C capacity in tokens, L layers, H heads, K heads of keys and values, D head
dimension.

    length    (B,)                 tokens of each sequence in the cache
    position  length + t           of new token t: RoPE turns by it, and the mask compares by it
    slot      b C + position       where its key and value lie: keys (B C + 1, K, D) of each layer, values alike

    out_t = softmax(q_t k^T / sqrt(D)) v    over the positions up to length + t of the same sequence

Each sequence of a batch has its own length. New tokens stand on the left and padding on the right; `counts` states how
many of the T are real. Padding is written to one spare slot that nobody reads. Each call of a model is

    cache.begin(T, counts)          positions and slots of the new tokens
    logits = model(tokens, cache=cache)     which calls `cache.attend` once a layer
    cache.end()                     the new tokens belong to the sequences

`WindowCache` and `PagedCache` place positions into slots in other ways; `Slots` holds a slot's numbers in 16 bits or 8.
Nothing here waits for the device: the host states how many tokens there are, so it knows all lengths itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from perflab.lab.attention import attention, decode_attention
from perflab.lab.inference.slots import Slots, sent, through_8_bits
from perflab.lab.models.config import ModelConfig
from perflab.lab.models.mixers import kind_of

KERNELS = ("sdpa", "torch", "triton")
"""Kernels that read a cache: PyTorch's own attention, or `decode_attention` in PyTorch or Triton."""


@dataclass(frozen=True)
class Step:
    """The slots and positions of the new tokens of one model call.

    positions  (B, T) of each new token; of padding that lies beyond the context, the context's last
    slots      (B T,) of each new token; of padding, the spare slot
    lengths    (B,) tokens of each sequence, the new ones included
    mask       (B, 1, T, N) what each new token sees of the slots that are read; None: all of it, or none are read
    """

    positions: Tensor
    slots: Tensor
    lengths: Tensor
    mask: Tensor | None


class KVCache:
    """Keys and values of a batch; each sequence has a run of C slots, allocated once.

    Args:
        config: of the model that fills it.
        batch_size: B.
        capacity: C, tokens a sequence; None: the model's context.
        dtype: of keys and values. torch.int8 takes half of 16 bits' bytes, and one scale for each token and head.
        device: where it lies.
        kernel: what reads it, out of KERNELS.

    Attributes:
        lengths: (B,) int64 on the device, tokens of each sequence.
        counts: the same numbers on the host.
        fixed: every step reads the whole capacity, so a CUDA graph or a compiled step serves every length.

    Raises:
        ValueError: no sequence, no capacity or more than the model's context; an unknown dtype or kernel; a model
            whose mixer keeps a state and no keys.
    """

    _clears = True
    """Whether the memory is this cache's alone, so that emptying the cache may clear it."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        batch_size: int,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        kernel: str = "sdpa",
    ) -> None:
        check_keeps_keys(config, type(self).__name__)
        capacity = config.context_length if capacity is None else capacity
        if batch_size < 1:
            raise ValueError(f"a cache for a batch of {batch_size}: wanted 1 sequence or more")
        if not 1 <= capacity <= config.context_length:
            raise ValueError(
                f"a cache for {capacity} tokens: wanted 1 to context_length={config.context_length}; build the model "
                "with a longer context, or give less capacity"
            )
        if kernel not in KERNELS:
            raise ValueError(f"kernel={kernel!r}: wanted one of {', '.join(KERNELS)}")
        self.config, self.batch_size, self.capacity, self.kernel = config, batch_size, capacity, kernel
        self.memory = self._allocated(dtype, torch.device(device))
        self.device = self.memory.device
        self.lengths = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        self.counts = [0] * batch_size
        self.fixed = False
        self._adding: tuple[int, ...] = ()
        self._is_ragged = False
        self._real = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        self._real_counts = (0,) * batch_size
        self._step: Step | None = None

    def begin(self, new_tokens: int, counts: Sequence[int] | None = None) -> None:
        """Make room for T new tokens of each sequence, of which `counts` are real; None: all.

        Raises:
            ValueError: they do not fit; names the sequence and the remedy.
        """
        self.reserve(new_tokens, counts)
        self.place(new_tokens)

    def reserve(self, new_tokens: int, counts: Sequence[int] | None = None) -> None:
        """Check the counts of new tokens, and keep them: the host's part of `begin`."""
        adding = (new_tokens,) * self.batch_size if counts is None else tuple(counts)
        if len(adding) != self.batch_size or any(not 0 <= count <= new_tokens for count in adding):
            raise ValueError(
                f"counts={list(adding)} of {new_tokens} new tokens in {self.batch_size} sequences: wanted one number "
                f"for each sequence, 0 to {new_tokens}"
            )
        for sequence, (held, count) in enumerate(zip(self.counts, adding, strict=True)):
            if held + count > self.capacity:
                raise ValueError(
                    f"the cache is full: sequence {sequence} has {held} tokens and gets {count} more, with room for "
                    f"{self.capacity}; make it with capacity={held + count} or more, or generate fewer tokens"
                )
        self._adding, self._is_ragged = adding, self.fixed or min(adding) < new_tokens
        if self._is_ragged and adding != self._real_counts:
            self._real.copy_(sent(adding, self.device))  # in place: a CUDA graph has the address
            self._real_counts = adding

    def place(self, new_tokens: int) -> None:
        """Compute positions and slots of the new tokens from `lengths`: the device's part of `begin`."""
        at = torch.arange(new_tokens, device=self.device)
        positions = self.lengths[:, None] + at
        lengths = self.lengths + (self._real if self._is_ragged else new_tokens)
        slots = self._slots_of(positions.clamp(max=self.capacity - 1), lengths)
        if self._is_ragged:
            slots = torch.where(at < self._real[:, None], slots, self._spare)
        positions = positions.clamp(max=self.config.context_length - 1)
        mask = None
        if not (self._is_prompt or self._is_for_kernel(new_tokens) or self._is_all_seen(new_tokens)):
            mask = seen(positions, self._positions_read(lengths), self.config.window)[:, None]
        self._step = Step(positions, slots.flatten(), lengths, mask)

    @property
    def positions(self) -> Tensor:
        """(B, T) positions of the new tokens."""
        return self._open_step().positions

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k, v (B, K, T, D) of the new tokens, and return attention (B, H, T, D) of q over all tokens so far.

        Raises:
            TypeError: k is of another dtype than the cache.
        """
        step = self._open_step()
        if self.memory.dtype not in (k.dtype, torch.int8):
            raise TypeError(
                f"keys in {k.dtype} for a cache in {self.memory.dtype}: make the cache with dtype={k.dtype} or "
                "torch.int8, or cast the model"
            )
        self.memory.write(layer, step.slots, k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1))
        if self._is_prompt:
            if self.memory.dtype == torch.int8:  # as later tokens see them, so that chunks make no difference
                k, v = through_8_bits(k), through_8_bits(v)
            window = self.config.window
            settings: dict[str, Any] = {} if window is None else {"window_size": (window - 1, 0)}
            return attention(q, k, v, impl=self.config.attention, is_causal=True, **settings)
        if self._is_for_kernel(q.shape[-2]):
            return self._by_kernel(layer, q, step)
        keys, values = self._read(layer, q.dtype)
        return F.scaled_dot_product_attention(q, keys, values, step.mask, enable_gqa=q.shape[1] != keys.shape[1])

    def end(self) -> None:
        """Count the new tokens as cached."""
        self.keep_lengths()
        self.keep_counts()

    def keep_lengths(self) -> None:
        """Make the new lengths the sequences' own, on the device."""
        self.lengths.copy_(self._open_step().lengths)  # in place: a CUDA graph has the address
        self._step = None

    def keep_counts(self) -> None:
        """Make the new lengths the sequences' own, on the host."""
        self.counts = self._next_counts()

    def truncate(self, counts: Sequence[int]) -> None:
        """Forget what sequences have beyond so many tokens, as speculation does with refused ones.

        Raises:
            ValueError: a sequence is shorter than that.
        """
        if any(not 0 <= count <= held for count, held in zip(counts, self.counts, strict=True)):
            raise ValueError(f"truncate({list(counts)}) with {self.counts} tokens: wanted no more than there are")
        self.counts = list(counts)
        if not any(counts) and self._clears:
            self.memory.clear(slice(None))  # a weight of 0 times NaN is NaN: what overflowed must not come back
        if len(set(counts)) == 1:
            self.lengths.fill_(self.counts[0])
        else:
            self.lengths.copy_(sent(self.counts, self.device))

    def _allocated(self, dtype: torch.dtype, device: torch.device) -> Slots:
        slots = self.batch_size * self.capacity + 1
        return Slots(self.config.num_layers, slots, self.config.kv_heads, self.config.head_dim, dtype, device)

    @property
    def _spare(self) -> int:
        """The slot of padding, the last one."""
        return self.memory.num_slots - 1

    def _slots_of(self, positions: Tensor, lengths: Tensor) -> Tensor:
        """Positions (B, T) to slots (B, T), where sequences will have these lengths (B,)."""
        return positions + torch.arange(self.batch_size, device=self.device)[:, None] * self.capacity

    @property
    def _is_prompt(self) -> bool:
        """Whether the new tokens have nothing to see but each other."""
        return not self.fixed and not any(self.counts)

    def _is_for_kernel(self, new_tokens: int) -> bool:
        """Whether a kernel reads: it takes the last query for the newest token, which padding behind it contradicts."""
        return self.kernel != "sdpa" and (new_tokens == 1 or min(self._adding) == new_tokens)

    def _is_all_seen(self, new_tokens: int) -> bool:
        """Whether each new token sees every slot that is read."""
        alike = len(set(self._next_counts())) == 1
        return not self.fixed and self.config.window is None and new_tokens == 1 and alike

    @property
    def _num_read(self) -> int:
        """N, how many slots of a sequence are read."""
        return self.capacity if self.fixed else max(self._next_counts())

    def _positions_read(self, lengths: Tensor) -> Tensor:
        """The positions in the slots that are read, (1, N) or (B, N), where sequences will have these lengths (B,)."""
        return torch.arange(self._num_read, device=self.device)[None]

    def _read(self, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values (B, K, N, D) of N slots a sequence."""
        shape = self.batch_size, self.capacity
        return self.memory.read(layer, slice(0, self._spare), shape, dtype, self._num_read)

    def _by_kernel(self, layer: int, q: Tensor, step: Step, pages: Tensor | None = None) -> Tensor:
        parts = self.memory.raw(layer, slice(0, self._spare), self._shape)
        return decode_attention(
            q, parts.keys, parts.values, lengths=step.lengths, window=self.config.window, key_scales=parts.key_scales,
            value_scales=parts.value_scales, impl=self.kernel, pages=pages,
        )  # fmt: skip

    @property
    def _shape(self) -> tuple[int, int]:
        """Return the slots as a kernel sees them."""
        return self.batch_size, self.capacity

    def _next_counts(self) -> list[int]:
        return [held + count for held, count in zip(self.counts, self._adding, strict=True)]

    def _open_step(self) -> Step:
        if self._step is None:
            raise RuntimeError("a cache takes tokens between begin() and end(): call cache.begin(new_tokens) first")
        return self._step


def seen(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """(B, T, N): which positions of keys (B, N) each position of queries (B, T) sees; a negative one is empty."""
    distance = queries[..., None] - keys[:, None]
    mask = (distance >= 0) & (keys >= 0)[:, None]
    return mask if window is None else mask & (distance < window)


def check_keeps_keys(config: ModelConfig, cache: str) -> None:
    """Raise ValueError for a model whose mixer has no keys that this kind of cache could hold."""
    if kind_of(config).has_state:
        raise ValueError(
            f"{cache} for mixer={config.mixer!r}, which has no keys and values but a state of fixed size: make a "
            f"StateCache (perflab.lab.inference.state_cache), or the model with mixer='attention'"
        )
