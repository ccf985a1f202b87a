"""The definition of the selective scan, in float64, one position after the other. It is never optimised.

Shapes
    x, dt, z, y        (B, T, E): batch, sequence, channels
    a                  (E, N), not above zero: N numbers of state a channel
    b, c               (B, T, N), the same for all channels
    d                  (E,)
    state              (B, E, N), of before the first position and behind the last
    starts             (B, T) of bool: a sequence begins here, and sees nothing of what stands before

    h_t = exp(dt_t a) h_{t-1} + dt_t b_t x_t        h_{t-1} = 0 where a sequence begins
    y_t = sum_n c_tn h_tn + d x_t                   times silu(z_t), if there is a gate

Source: Gu & Dao (2023), "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", section 3.2, algorithm 2.
exp(dt a) is the zero-order hold of their equation 4; dt b is that of b to first order in dt, as in the authors' code.
"""

import torch
from torch import Tensor


def reference_selective_scan(
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
) -> tuple[Tensor, Tensor]:
    """y and the state behind the last position, both float64, of inputs of any floating dtype.

    Differentiable by autograd, which keeps a state for each position.
    """
    x, dt, a, b, c = (tensor.double() for tensor in (x, dt, a, b, c))
    h = x.new_zeros(x.shape[0], *a.shape) if state is None else state.double()
    outputs = []
    for t in range(x.shape[1]):
        if starts is not None:
            h = torch.where(starts[:, t, None, None], 0.0, h)
        h = torch.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * x[:, t])[:, :, None] * b[:, t, None, :]
        outputs.append((c[:, t, None, :] * h).sum(dim=-1))
    y = torch.stack(outputs, dim=1)
    if d is not None:
        y = y + d.double() * x
    if z is not None:
        y = y * z.double() * torch.sigmoid(z.double())
    return y, h
