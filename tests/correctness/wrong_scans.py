"""Selective scans that are wrong on purpose, one fault each: what their suite has to catch.

Shapes: x, dt, z, y (B, T, E); a (E, N); b, c (B, T, N); d (E,); state (B, E, N); starts (B, T).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .scan_cases import ScanCase

CHUNK = 16


class _Silu(torch.autograd.Function):
    """silu whose gradient leaves out the slope of the sigmoid."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return torch.nn.functional.silu(z)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        return upstream * torch.sigmoid(ctx.saved_tensors[0])


def faulty_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None = None,
    *,
    z: Tensor | None = None,
    state: Tensor | None = None,
    starts: Tensor | None = None,
    edge: float = 1.0,
    dt_twice: bool = False,
    next_decay: bool = False,
    decays_what_enters: bool = False,
    no_dd: bool = False,
    no_slope: bool = False,
    bleeds: bool = False,
    state_dtype: torch.dtype = torch.float32,
    reads_before: bool = False,
    ignores_state: bool = False,
    one_row_of_b: bool = False,
) -> tuple[Tensor, Tensor]:
    """Right as long as no fault is switched on: one position after the other, states and sums in float32.

    `edge` is what the state is multiplied by at a chunk's edge; the other names say what is wrong.
    """
    dtype = x.dtype
    x, dt, a, b, c = (tensor.float() for tensor in (x, dt, a, b, c))
    if one_row_of_b:
        b = b[:1].expand(b.shape)
    h = x.new_zeros(x.shape[0], *a.shape) if state is None or ignores_state else state.float()
    outputs = []
    for t in range(x.shape[1]):
        if starts is not None and not bleeds:
            h = h.masked_fill(starts[:, t, None, None], 0.0)
        if t and t % CHUNK == 0:
            h = h * edge
        decay = torch.exp(dt[:, min(t + next_decay, x.shape[1] - 1), :, None] * a)
        before = h
        entering = (dt[:, t] * x[:, t] * (dt[:, t] if dt_twice else 1.0))[..., None] * b[:, t, None, :]
        h = decay * (h + entering) if decays_what_enters else decay * h + entering
        h = h.to(state_dtype).float()
        outputs.append(((before if reads_before else h) * c[:, t, None, :]).sum(-1))
    y = torch.stack(outputs, 1)
    if d is not None:
        y = y + (d.detach() if no_dd else d).float() * x
    if z is not None:
        y = y * (_Silu.apply(z.float()) if no_slope else torch.nn.functional.silu(z.float()))
    return y.to(dtype), h


@dataclass(frozen=True)
class WrongScan:
    """A fault by name, the candidate that has it, the case that catches it, and what the report must say."""

    name: str
    candidate: Callable[..., Any]
    case: ScanCase
    clue: str

    def __str__(self) -> str:
        return self.name


def _wrong(name: str, clue: str, case: ScanCase = ScanCase(), **fault: Any) -> WrongScan:  # noqa: B008
    return WrongScan(name, partial(faulty_scan, **fault), case, clue)


WEAK = ScanCase(decay="weak")
WRONG_SCANS = (
    _wrong("state-lost-at-a-chunk", "y is wrong", WEAK, edge=0.0),
    _wrong("state-doubled-at-a-chunk", "y is wrong", WEAK, edge=2.0),
    _wrong("dt-applied-twice", "y is wrong", dt_twice=True),
    _wrong("decay-of-the-next-step", "y is wrong", next_decay=True),
    _wrong("decays-what-enters", "y is wrong", decays_what_enters=True),
    _wrong("gradient-of-d-forgotten", "dd is wrong", no_dd=True),
    _wrong("slope-of-the-gate-forgotten", "dz is wrong", ScanCase(gate="normal"), no_slope=True),
    _wrong("sequences-bleed", "y is wrong", ScanCase(decay="weak", starts="some"), bleeds=True),
    _wrong("state-in-16-bits", "final is wrong", ScanCase(129, "bf16", "weak"), state_dtype=torch.bfloat16),
    _wrong("reads-the-state-before", "y is wrong", reads_before=True),
    _wrong("given-state-ignored", "y is wrong", ScanCase(decay="weak", state=True), ignores_state=True),
    _wrong("batches-share-b", "y is wrong", one_row_of_b=True),
)
