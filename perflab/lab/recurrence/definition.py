"""The definition of the gated linear recurrence, in float64. A specification: it is never optimised.

Shapes
    q, k               (B, H, T, K)
    v, out             (B, H, T, V)
    log_decay          (B, H, T, K), or (B, H, T): one number a head; a = exp(log_decay) in [0, 1]
    bonus              (H, K)
    state S            (B, H, K, V)
    starts             (B, T), bool

    S_t = diag(a_t) S_{t-1} + k_t^T v_t        S_{t-1} taken as zero where starts_t
    o_t = q_t S_t                              without a bonus
    o_t = q_t (S_{t-1} + diag(u) k_t^T v_t)    with a bonus u: the token itself counts by u, and undecayed

Yang et al. (2024), "Gated Linear Attention", equation 3, with its table of models that are settings of it; the bonus
is that of Peng et al. (2024), "Eagle and Finch", section 4.2.
"""

import torch
from torch import Tensor


def recurrence_definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor | None = None,
    state: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output and the state behind the last token, both float64, of inputs of any floating dtype.

    Differentiable by autograd, token by token: it holds T states.
    """
    batch, heads, length, width = q.shape
    q, k, v = q.double(), k.double(), v.double()
    decay = (log_decay if log_decay.dim() == 4 else log_decay[..., None]).double().exp()
    held = q.new_zeros(batch, heads, width, v.shape[-1]) if state is None else state.double()
    outputs = []
    for t in range(length):
        if starts is not None:
            held = torch.where(starts[:, t, None, None, None], 0.0, held)
        written = k[:, :, t, :, None] * v[:, :, t, None, :]
        before, held = held, decay[:, :, t, :, None] * held + written
        read = held if bonus is None else before + bonus.double()[:, :, None] * written
        outputs.append((q[:, :, t, None, :] @ read).squeeze(-2))
    return torch.stack(outputs, dim=2), held
