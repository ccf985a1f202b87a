"""The fused kernels' definitions in float64, and the same mathematics in plain PyTorch. No Triton.

Shapes: x, gate, up (..., D); weight (D,); logits (N, V); targets (N,) int64.

A reference is a specification: it reads as the equation, takes any floating dtype, computes in float64 and is
differentiated by autograd. A plain version is what one writes without a kernel: it computes in the inputs' own
dtype, operator by operator, and is what the kernel is to be faster than and as right as.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE_INDEX = -100
"""The target that means "no target", by PyTorch's convention."""


def reference_weighted_sum(x: Tensor, weight: Tensor) -> Tensor:
    """y = sum_d w_d x_d: (..., D), (D,) -> (...), float64."""
    return (x.double() * weight.double()).sum(dim=-1)


def reference_rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """y = x / sqrt(mean_d x_d² + eps) * w: (..., D), (D,) -> (..., D), float64."""
    x = x.double()
    return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.double()


def reference_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """y = gate / (1 + exp(-gate)) * up: (..., D) twice -> (..., D), float64."""
    # The sigmoid is 1 / (1 + exp(-gate)), with a derivative where the exponential overflows.
    return gate.double() * torch.sigmoid(gate.double()) * up.double()


def reference_cross_entropy(
    logits: Tensor, targets: Tensor, ignore_index: int = IGNORE_INDEX, reduction: str = "mean"
) -> Tensor:
    """l_n = log sum_v exp(x_nv) - x_n,target_n, zero where the target is ignore_index: (N, V), (N,), float64.

    "none": (N,). "sum" and "mean": scalars, the mean over the rows that have a target; NaN if none has.
    """
    logits, kept = logits.double(), targets != ignore_index
    picked = torch.gather(logits, 1, torch.where(kept, targets, 0)[:, None]).squeeze(1)
    losses = torch.where(kept, torch.logsumexp(logits, dim=1) - picked, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()


def plain_weighted_sum(x: Tensor, weight: Tensor) -> Tensor:
    """Like `reference_weighted_sum`, in the inputs' dtype."""
    return (x * weight).sum(dim=-1)


def plain_rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Like `reference_rms_norm`, in the inputs' dtype: what stands in many models, in three to five kernels."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def plain_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Like `reference_swiglu`, in the inputs' dtype."""
    return F.silu(gate) * up


def plain_cross_entropy(
    logits: Tensor, targets: Tensor, ignore_index: int = IGNORE_INDEX, reduction: str = "mean"
) -> Tensor:
    """Like `reference_cross_entropy`: log-softmax in the inputs' dtype; the loss in float32, as the kernel gives it."""
    log_probabilities = F.log_softmax(logits, dim=-1).float()
    return F.nll_loss(log_probabilities, targets, ignore_index=ignore_index, reduction=reduction)
