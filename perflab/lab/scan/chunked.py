"""The selective scan in plain PyTorch: chunks one after the other, the positions of a chunk in parallel.

Shapes: x, dt, z, y (B, T, E); a (E, N); b, c (B, T, N); d (E,); state (B, E, N); starts (B, T). A chunk has L
positions, and holds a few (B, L, E, N).

Within a chunk the recurrence h_t = r_t h_{t-1} + u_t is a scan of pairs (r, u). An earlier and a later one join:

    (r, u) then (r', u')  ->  (r r', r' u + u')

so log2 L rounds of doubling reach do it (Hillis & Steele 1986, "Data parallel algorithms"; for recurrences Blelloch
1990, "Prefix sums and their applications", section 1.4). Decays exp(dt a) <= 1 are only multiplied: nothing is the
exponential of a positive number, as it would be if states were divided by the decay since the chunk's start.

For the gradients a chunk is computed again from the state ahead of it. So what is kept is the inputs and T / L states.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from perflab.lab.attention.inputs import accumulation_dtype

# Six rounds. Shorter chunks keep more states for the backward, longer ones hold more at once: at 64 and N = 16 the kept
# states take E bytes a position, half of what x takes in 16 bits.
CHUNK = 64


def chunked_selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    *,
    z: Tensor | None,
    state: Tensor | None,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """y in the dtype of x, and the state in float32 (float64 for float64), where sums are."""
    wide = accumulation_dtype(x.dtype)
    h = x.new_zeros(x.shape[0], *a.shape, dtype=wide) if state is None else state.to(wide)
    needs_gradients = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, dt, a, b, c, d, z, state)
    )
    outputs = []
    for x_, dt_, b_, c_, z_, starts_ in zip(*(_pieces(tensor, x) for tensor in (x, dt, b, c, z, starts)), strict=True):
        if needs_gradients:
            y, h = checkpoint(
                _one_chunk, h, a, d, x_, dt_, b_, c_, z_, starts_, use_reentrant=False, preserve_rng_state=False
            )
        else:
            y, h = _one_chunk(h, a, d, x_, dt_, b_, c_, z_, starts_)
        outputs.append(y)
    return torch.cat(outputs, dim=1), h


def _pieces(tensor: Tensor | None, like: Tensor) -> Sequence[Any]:
    """The tensor's chunks along T, by one split: the gradients of slices would each be as long as all of it."""
    if tensor is None:
        return [None] * -(-like.shape[1] // CHUNK)
    return tensor.split(CHUNK, dim=1)  # type: ignore[no-any-return, no-untyped-call]


def _one_chunk(
    state: Tensor,
    a: Tensor,
    d: Tensor | None,
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    z: Tensor | None,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    wide, dtype = state.dtype, x.dtype
    x, dt, a, b, c = (tensor.to(wide) for tensor in (x, dt, a, b, c))
    decay = torch.exp(dt[..., None] * a)
    if starts is not None:
        decay = decay.masked_fill(starts[..., None, None], 0.0)
    added = (dt * x)[..., None] * b[:, :, None, :]
    states = scanned(decay, _joined(added, [added[:, :1] + decay[:, :1] * state[:, None]], 1))
    y = (states @ c[..., None]).squeeze(-1)
    if d is not None:
        y = y + d.to(wide) * x
    if z is not None:
        y = y * F.silu(z.to(wide))
    # A copy: a view would keep the states of all positions.
    return y.to(dtype), states[:, -1].clone()


def scanned(decay: Tensor, added: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + added_t along dimension 1, from zero; in ceil(log2 L) rounds."""
    length, reach = added.shape[1], 1
    while reach < length:
        later = added[:, reach:] + decay[:, reach:] * added[:, :-reach]
        added = _joined(added, [added[:, :reach], later], length)
        decay = _joined(decay, [decay[:, :reach], decay[:, reach:] * decay[:, :-reach]], length)
        reach *= 2
    return added


def _joined(whole: Tensor, first: Sequence[Tensor], length: int) -> Tensor:
    """The pieces along dimension 1, and behind their `length` what `whole` has there."""
    return torch.cat([*first, whole[:, length:]], dim=1)
