"""A cache for a mixer with a state: as large after a million tokens as after one.

B sequences, T new tokens of each, L layers, d width.

    state of a layer    tensors (B, ...) that the mixer defines; `advance` moves them over new tokens
    position            length + t of new token t, for models with a table of positions

It stands where a `KVCache` does, and is called the same way: `begin`, the model, `end`. Padding stands on the right of
the T tokens, and must not move a state: sequences are run in groups of as many real tokens each, and those without any
are left alone. So a sequence's numbers are those that it has alone. A step that is compiled or recorded in a CUDA graph
(`fixed`) cannot depend on the counts: it moves all states by its one token, and keeps the old one where it is padding.

A state forgets nothing, so nothing of it can be taken back but all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from perflab.lab.inference.slots import sent
from perflab.lab.models.config import ModelConfig
from perflab.lab.models.mixers import MIXERS, State, StateMixer, empty_state, kind_of


class StateCache:
    """States of all layers of a batch, empty until tokens come.

    Args:
        config: of the model that fills it; its mixer has a state.
        batch_size: B.
        capacity: tokens a sequence; None: the model's context. No memory depends on it.
        dtype: of the states, as the mixer's `initial_state` takes it: the model's.
        device: where they lie.

    Attributes:
        lengths: (B,) int64 on the device, tokens that each sequence's state has seen.
        counts: the same numbers on the host.
        fixed: every step is one token of each sequence, so a CUDA graph or a compiled step serves every length.

    Raises:
        ValueError: the model keeps keys and no state; no sequence; more capacity than the model's context; int8.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        batch_size: int,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if not kind_of(config).has_state:
            with_state = ", ".join(name for name, kind in MIXERS.items() if kind.has_state)
            raise ValueError(
                f"StateCache for mixer={config.mixer!r}, which keeps keys and values of all tokens: make a KVCache, or "
                f"the model with mixer= one of {with_state}"
            )
        capacity = config.context_length if capacity is None else capacity
        if batch_size < 1:
            raise ValueError(f"a cache for a batch of {batch_size}: wanted 1 sequence or more")
        if not 1 <= capacity <= config.context_length:
            raise ValueError(
                f"a cache for {capacity} tokens: wanted 1 to context_length={config.context_length}; build the model "
                "with a longer context, or give less capacity"
            )
        if not dtype.is_floating_point:
            raise ValueError(
                f"a state in {dtype}: a step rounds what the step before has rounded, and 8 bits would add up; give "
                f"the model's dtype, such as torch.bfloat16"
            )
        self.config, self.batch_size, self.capacity = config, batch_size, capacity
        empty = empty_state(config, batch_size, torch.device(device), dtype)
        # Tensors of their own for each layer and row: what is expanded could not be written to.
        self.states: list[State] = [
            tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in empty)
            for _ in range(config.num_layers)
        ]
        self._empty = [tensor[:1].clone() for tensor in self.states[0]]
        self.dtype, self.device = dtype, self.states[0][0].device
        self.lengths = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        self.counts = [0] * batch_size
        self.fixed = False
        self._adding: tuple[int, ...] = ()
        self._real = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        self._groups: list[tuple[int, Tensor]] = []
        self._positions: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the states of all layers."""
        return sum(tensor.nbytes for state in self.states for tensor in state)

    def begin(self, new_tokens: int, counts: Sequence[int] | None = None) -> None:
        """Expect T new tokens of each sequence, of which `counts` are real; None: all.

        Raises:
            ValueError: they are more than the capacity; names the sequence and the remedy.
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
        if self.fixed and new_tokens != 1:
            raise ValueError(
                f"{new_tokens} new tokens for a cache whose steps are compiled or recorded, one token each: set "
                f"cache.fixed = False first"
            )
        for sequence, (held, count) in enumerate(zip(self.counts, adding, strict=True)):
            if held + count > self.capacity:
                raise ValueError(
                    f"the cache is full: sequence {sequence} has {held} tokens and gets {count} more, with room for "
                    f"{self.capacity}; make it with capacity={held + count} or more, or generate fewer tokens"
                )
        if adding != self._adding:
            self._real.copy_(sent(adding, self.device))  # in place: a CUDA graph has the address
            members = defaultdict(list)
            for sequence, count in enumerate(adding):
                members[count].append(sequence)
            self._groups = [(count, sent(rows, self.device)) for count, rows in members.items() if count]
        self._adding = adding

    def place(self, new_tokens: int) -> None:
        """Compute the positions of the new tokens from `lengths`: the device's part of `begin`."""
        positions = self.lengths[:, None] + torch.arange(new_tokens, device=self.device)
        self._positions = positions.clamp(max=self.config.context_length - 1)

    @property
    def positions(self) -> Tensor:
        """(B, T) positions of the new tokens; of padding that lies beyond the context, the context's last."""
        if self._positions is None:
            raise RuntimeError("a cache takes tokens between begin() and end(): call cache.begin(new_tokens) first")
        return self._positions

    def advance(self, layer: int, mixer: StateMixer, x: Tensor) -> Tensor:
        """Move a layer's state over the real ones of the new tokens x (B, T, d); returns the mixer's outputs (B, T, d).

        Those of padding are 0.
        """
        state = self.states[layer]
        if self.fixed:
            out, moved = mixer.advance(x, state)
            for old, new in zip(state, moved, strict=True):
                is_real = (self._real > 0).view(-1, *[1] * (old.ndim - 1))
                old.copy_(torch.where(is_real, new, old))
            return out
        if self._adding == (x.shape[1],) * self.batch_size:
            out, moved = mixer.advance(x, state)
            _keep(state, moved)
            return out
        out = torch.zeros_like(x)
        for count, rows in self._groups:
            part, moved = mixer.advance(x[rows, :count], tuple(tensor[rows] for tensor in state))
            out[rows, :count] = part.to(out.dtype)
            for old, new in zip(state, moved, strict=True):
                old[rows] = new.to(old.dtype)
        return out

    def end(self) -> None:
        """Count the new tokens as seen."""
        self.keep_lengths()
        self.keep_counts()

    def keep_lengths(self) -> None:
        """Make the new lengths the sequences' own, on the device."""
        self.lengths.add_(self._real)  # in place: a CUDA graph has the address
        self._positions = None

    def keep_counts(self) -> None:
        """Make the new lengths the sequences' own, on the host."""
        self.counts = [held + count for held, count in zip(self.counts, self._adding, strict=True)]

    def truncate(self, counts: Sequence[int]) -> None:
        """Empty the states of sequences whose count is 0, and leave those alone that keep all.

        Raises:
            ValueError: a sequence would keep a part of its tokens, which a state cannot.
        """
        for sequence, (count, held) in enumerate(zip(counts, self.counts, strict=True)):
            if count not in (0, held):
                raise ValueError(
                    f"truncate({list(counts)}): the state of sequence {sequence} has seen {held} tokens and cannot "
                    f"forget {held - count} of them; give 0 or {held}, or use mixer='attention', whose cache can"
                )
        emptied = [sequence for sequence, count in enumerate(counts) if count == 0]
        if emptied:
            rows = sent(emptied, self.device)
            for state in self.states:
                for tensor, empty in zip(state, self._empty, strict=True):
                    tensor[rows] = empty
        self.recount(counts)

    def snapshot(self) -> list[State]:
        """Copies of the states of all layers, for `restore`."""
        return [tuple(tensor.clone() for tensor in state) for state in self.states]

    def restore(self, states: Sequence[State]) -> None:
        """Write a snapshot back, in place."""
        for state, kept in zip(self.states, states, strict=True):
            _keep(state, kept)

    def recount(self, counts: Sequence[int]) -> None:
        """Take the states for those of so many tokens: to time one step again and again, whose work is the same."""
        self.counts = list(counts)
        self.lengths.copy_(sent(self.counts, self.device))


def _keep(state: State, moved: State) -> None:
    for old, new in zip(state, moved, strict=True):
        old.copy_(new)
