"""Gated linear recurrences that are wrong on purpose, one fault each: what the suite has to catch, and to name.

Shapes: q, k (B, H, T, K); v, out (B, H, T, V); log_decay (B, H, T, K) or (B, H, T); state (B, H, K, V).
Faults are switches of a small recurrence by chunks of float32 (`recur`); with none of them it is right, which is tested
too. It shares no code with the float64 predictions that the diagnosis is made of.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from perflab.correctness import OperatorCase

from .recurrence import RECURRENCE

CHUNK = 16
LN_2 = 0.6931471805599453


def recur(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor | None = None,
    state: Tensor | None = None,
    starts: Tensor | None = None,
    **faults: Any,
) -> tuple[Tensor, Tensor]:
    """Chunk by chunk, a matrix of pairs each; right as long as no fault is switched on."""
    on = faults.get
    dtype, length = q.dtype, q.shape[2]
    q, k, v, decay = q.float(), k.float(), v.float(), log_decay.float()
    decay = decay[..., None] if decay.dim() == 3 else decay
    decay = (decay * on("power", 1.0)).expand(k.shape)
    if on("late"):
        decay = torch.cat((decay[:, :, :1], decay[:, :, :-1]), dim=2)
    if on("first_head"):
        decay = decay[:, :1].expand(k.shape)
    held = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1], device=q.device)
    if state is not None:
        held = state.float()
        if on("state_detached"):
            held = held.detach() + 0.0 * held
    begins = torch.zeros(q.shape[0], length, dtype=torch.bool, device=q.device) if starts is None else starts
    begins = torch.zeros_like(begins) if on("bleeds") else begins
    pieces = []
    for first in range(0, length, CHUNK):
        part = slice(first, min(first + CHUNK, length))
        if first:
            held = held * on("edge", 1.0)
        out, held = _chunk(*(x[:, :, part] for x in (q, k, v, decay)), bonus, held, begins[:, part], faults)
        pieces.append(out)
    if on("last_is_entering"):
        held = state.float() if state is not None else torch.zeros_like(held)
    out = torch.cat(pieces, dim=2)
    if on("tail_unwritten") and length % CHUNK:
        whole = torch.empty_like(out)
        whole[:, :, : length // CHUNK * CHUNK] = out[:, :, : length // CHUNK * CHUNK]
        out = whole
    return out.to(dtype), held


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor | None, held: Tensor, begins: Tensor,
    faults: dict[str, Any],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    on = faults.get
    size = q.shape[2]
    i = torch.arange(size, device=q.device)
    later = (i[:, None] > i)[:, :, None]
    sequence = begins.cumsum(1)
    together = (sequence[:, :, None] == sequence[:, None])[:, None, ..., None]
    exponents = torch.where(later, decay[:, :, :, None], torch.zeros(())).cumsum(2)  # from j + 1 to i
    from_start = decay.cumsum(2)
    if bonus is not None:  # to i - 1
        exponents = torch.cat((torch.zeros_like(exponents[:, :, :1]), exponents[:, :, :-1]), dim=2)
        from_start = torch.cat((torch.zeros_like(from_start[:, :, :1]), from_start[:, :, :-1]), dim=2)
    seen = (later if bonus is not None or on("strict") else later | (i[:, None] == i)[:, :, None]) & together
    if on("ahead"):
        seen = seen | (i[:, None] + 1 == i)[:, :, None]
    weights = torch.where(seen, exponents, torch.tensor(-torch.inf)).exp()
    out = torch.einsum("bhik,bhijk,bhjk,bhjv->bhiv", q, weights, k, v)
    if bonus is not None:
        own = (q * bonus.float()[:, None] * k).sum(-1, keepdim=True) * v
        out = out + (own.detach() + 0.0 * own if on("bonus_detached") else own)
    first = (sequence == 0)[:, None, :, None]
    out = out + (q * torch.where(first, from_start.exp(), torch.zeros(()))) @ held
    same_as_last = (sequence == sequence[:, -1:])[:, None, :, None]
    after = torch.where(later, decay[:, :, :, None], torch.zeros(())).sum(2)
    written = (k * torch.where(same_as_last, after.exp(), torch.zeros(()))).mT @ v
    kept = torch.where(first[:, :, -1:], decay.sum(2, keepdim=True).exp(), torch.zeros(())).mT
    return out, kept * held + written


@dataclass(frozen=True)
class WrongRecurrence:
    """One fault: the switches, a case that shows it, and words that the verdict must have."""

    name: str
    clue: str
    levels: dict[str, Any]
    faults: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """The recurrence with its fault."""
        return partial(recur, **self.faults)

    @property
    def case(self) -> OperatorCase:
        """The case that shows it."""
        return RECURRENCE.case(**{"width": "k5v3", "length": 65, "heads": 3, "decay": "mixed", **self.levels})


ALL = {"bonus": True, "state": True, "starts": True}
WRONG_RECURRENCES = (
    WrongRecurrence("carried-twice", "carried twice over the edge of a chunk of 16", {}, {"edge": 2.0}),
    WrongRecurrence("not-carried", "not carried over the edge of a chunk of 16", {"decay": "weak"}, {"edge": 0.0}),
    WrongRecurrence("decay-twice", "the decay is applied twice", ALL, {"power": 2.0}),
    WrongRecurrence("decay-ignored", "the decay is ignored", {}, {"power": 0.0}),
    WrongRecurrence("base-2", "2 to the power of its natural logarithm", {"per_head": True}, {"power": LN_2}),
    WrongRecurrence("decay-late", "off by one step: that of the token before", {"decay": "shut"}, {"late": True}),
    WrongRecurrence("first-head", "all heads have the decay of the first", {"per_head": True}, {"first_head": True}),
    WrongRecurrence("bonus-backward", "the backward forgets the bonus", {"bonus": True}, {"bonus_detached": True}),
    WrongRecurrence("state-backward", "initial state's gradient is dropped", {"state": True}, {"state_detached": True}),
    WrongRecurrence("bleeds", "bleeds over the start", {"starts": True, "decay": "weak"}, {"bleeds": True}),
    WrongRecurrence("itself-unread", "a token does not read what it writes", {"decay": "none"}, {"strict": True}),
    WrongRecurrence("ahead", "out is wrong", {"decay": "none"}, {"ahead": True}),
    WrongRecurrence("entering-returned", "state is wrong", {"state": True}, {"last_is_entering": True}),
    WrongRecurrence("tail-unwritten", "is NaN: never written", {"length": 17}, {"tail_unwritten": True}),
)  # fmt: skip
