"""Which experts a token goes to, with which weights; and two losses that keep them busy.

n tokens, d model width, E experts, k experts a token. z = W_r x are a token's logits, (E,).

    softmax         p = softmax(z)     chosen: the k largest p       g_i = p_i
    top-k-softmax   p = softmax(z)     chosen: the k largest z       g   = softmax of the chosen z
    sigmoid         s = sigmoid(z)     chosen: the k largest s + b   g_i = s_i / sum of the chosen s;   p = s / sum s

The bias b helps to choose and weighs nothing, so it has no gradient: after a step, b_i moves by `rate` up for an expert
that got less than the mean, and down for one that got more (DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2).

    balance loss    E sum_i f_i P_i    f_i: share of the n k choices that fell on i; P_i: mean of p_i over the tokens
    z loss          mean over the tokens of  (log sum_i exp z_i)^2

The first is 1 where all are equally busy (Fedus et al. 2021, Switch, equation 4, there with k = 1); only P has a
gradient. The second keeps logits small (Zoph et al. 2022, ST-MoE, equation 5). Logits are float32 at least from the
softmax on (Fedus et al. 2021, section 2.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from perflab.lab.experts.config import ExpertConfig
from perflab.lab.models.transformer import Linear


class Routing(NamedTuple):
    """The router's decisions for n tokens.

    chosen         (n, k) int64, experts of each token
    weights        (n, k) float32 at least, in the order of `chosen`
    logits         (n, E) z, float32 at least
    probabilities  (n, E) p
    """

    chosen: Tensor
    weights: Tensor
    logits: Tensor
    probabilities: Tensor


class RouterLosses(NamedTuple):
    """The balance loss and the router z loss of one layer, scalars."""

    balance: Tensor
    z: Tensor


class Router(nn.Module):
    """Tokens (n, d) to `Routing`, see the module."""

    bias: Tensor | None

    def __init__(self, d_model: int, experts: ExpertConfig) -> None:
        super().__init__()
        self.kind, self.k = experts.router, experts.experts_per_token
        self.project = Linear(d_model, experts.num_experts)
        self.register_buffer("bias", torch.zeros(experts.num_experts) if self.kind == "sigmoid" else None)

    def forward(self, tokens: Tensor) -> Routing:
        """(n, d) -> `Routing`."""
        logits = self.project(tokens)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.bias is not None:
            scores = torch.sigmoid(logits)
            chosen = (scores + self.bias).topk(self.k).indices
            weights = scores.gather(-1, chosen)
            return Routing(
                chosen, weights / weights.sum(-1, keepdim=True), logits, scores / scores.sum(-1, keepdim=True)
            )
        probabilities = torch.softmax(logits, -1)
        if self.kind == "softmax":
            weights, chosen = probabilities.topk(self.k)
        else:
            largest, chosen = logits.topk(self.k)
            weights = torch.softmax(largest, -1)
        return Routing(chosen, weights, logits, probabilities)

    @torch.no_grad()
    def move_bias(self, load: Tensor, rate: float) -> None:
        """Move the bias of "sigmoid" by `rate` towards experts that got less of `load` (E,) than the mean."""
        if self.bias is not None:
            load = load.float()
            self.bias += rate * torch.sign(load.mean() - load)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        # `.to(bfloat16)` would round the bias, whose steps of 0.001 are then lost beside 0.25.
        bias = self.bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if bias is not None and self.bias is not None and self.bias.dtype != bias.dtype:
            self.bias = bias.to(self.bias.device)
        return self


def router_losses(routing: Routing, counts: Tensor) -> RouterLosses:
    """Return the balance loss and the z loss of one layer, whose experts were chosen `counts` (E,) times."""
    share = counts.to(routing.probabilities.dtype) / routing.chosen.numel()
    balance = counts.numel() * (share * routing.probabilities.mean(0)).sum()
    return RouterLosses(balance, torch.logsumexp(routing.logits, -1).square().mean())


def weighted_loss(of_layers: Sequence[RouterLosses], balance_weight: float, z_weight: float) -> Tensor:
    """Return what a training step adds to its loss: balance and z loss, means over the layers, weighted."""
    balance, z = zip(*of_layers, strict=True)
    return balance_weight * torch.stack(balance).mean() + z_weight * torch.stack(z).mean()
