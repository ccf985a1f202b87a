"""The layer: tokens to their experts and back.

n tokens, d model width, E experts, k a token, F width of one, R = n k rows: a token has one for each of its experts.

    order (R,)   rows sorted by expert, in the order of tokens within one; with a capacity those left out come last
    ends (E,)    where in `order` the rows of each expert end
    place (R,)   where in `order` a row stands

Rows behind `ends[-1]` are nobody's: a grouped product leaves there what was in memory, and leaves the same in their
gradient (pytorch#154557, pytorch#193633). Multiplying that by zero would not do, since it may be NaN: they are replaced
by zero ahead of the product, which replaces their gradient behind it, and behind the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab.experts.products import grouped_product
from perflab.lab.experts.router import Router, RouterLosses, router_losses
from perflab.lab.models.transformer import Linear, residual_gain

if TYPE_CHECKING:
    from perflab.lab.models.config import ModelConfig


class Plan(NamedTuple):
    """The rows' places in the grouped product; see the module.

    order, place  (R,) int64
    ends          (E,) int32
    counts        (E,) int64, how often each expert was chosen, those left out included
    is_kept       (R,) whether the row at this place of `order` is computed; None: all are
    """

    order: Tensor
    place: Tensor
    ends: Tensor
    counts: Tensor
    is_kept: Tensor | None


class Usage(NamedTuple):
    """The use of experts by the last forward: `counts` (E,), how often each was chosen; `dropped`, rows left out."""

    counts: Tensor
    dropped: Tensor


def planned(chosen: Tensor, num_experts: int, capacity: int | None) -> Plan:
    """Plan the places of n tokens' rows with `chosen` (n, k), where an expert takes at most `capacity` rows."""
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=flat.device)
    counts = counts.scatter_add(0, flat, torch.ones_like(flat))  # bincount would wait for the device
    ends, rows, is_kept = counts.cumsum(0), torch.arange(len(flat), device=flat.device), None
    if capacity is not None:
        of_expert = flat[order]
        rank = rows - (ends - counts)[of_expert]
        order = order[(rank >= capacity).argsort(stable=True)]
        ends = counts.clamp(max=capacity).cumsum(0)
        is_kept = rows < ends[-1]
    place = torch.empty_like(order).scatter_(0, order, rows)
    return Plan(order, place, ends.to(torch.int32), counts, is_kept)


class Experts(nn.Module):
    """E feed-forwards with SwiGLU, their matrices in one tensor each: rows (R, d) in order of experts -> (R, d)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts = config.experts
        width, self.product = experts.expert_width(config.d_ff), experts.expert_product
        self.gain = residual_gain(config)
        self.gate = nn.Parameter(torch.empty(experts.num_experts, config.d_model, width))
        self.up = nn.Parameter(torch.empty(experts.num_experts, config.d_model, width))
        self.down = nn.Parameter(torch.empty(experts.num_experts, width, config.d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew from torch's global generator, as `Linear` does."""
        for weight, gain in ((self.gate, 1.0), (self.up, 1.0), (self.down, self.gain)):
            nn.init.normal_(weight, std=gain * weight.shape[1] ** -0.5)

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """(R, d) -> (R, d); rows behind `ends[-1]` are undefined."""
        return feed_forward_of_experts(rows, self.gate, self.up, self.down, ends, self.product)


def feed_forward_of_experts(rows: Tensor, gate: Tensor, up: Tensor, down: Tensor, ends: Tensor, how: str) -> Tensor:
    """SwiGLU of each row's expert: rows (R, d), gate and up (E, d, F), down (E, F, d) -> (R, d)."""
    hidden = F.silu(grouped_product(rows, gate, ends, how)) * grouped_product(rows, up, ends, how)
    return grouped_product(hidden, down, ends, how)


class SharedExperts(nn.Module):
    """The experts that every token passes through: one SwiGLU, s experts wide."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.gate = Linear(config.d_model, width)
        self.up = Linear(config.d_model, width)
        self.down = Linear(width, config.d_model, gain=residual_gain(config))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class MixtureOfExperts(nn.Module):
    """A feed-forward of which each token uses k experts of E, and all that are shared.

    Attributes:
        usage: of the last forward; None before.
        load: (E,) how often each expert was chosen in training since the router's bias moved.
        losses: where a forward in training mode adds its `RouterLosses`; None: nowhere. `collecting` sets it.
    """

    load: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.settings = config.experts
        self.router = Router(config.d_model, config.experts)
        self.experts = Experts(config)
        shared = config.experts.shared_experts * config.experts.expert_width(config.d_ff)
        self.shared = SharedExperts(config, shared) if shared else None
        self.register_buffer("load", torch.zeros(config.experts.num_experts, dtype=torch.int64), persistent=False)
        self.usage: Usage | None = None
        self.losses: list[RouterLosses] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        tokens = x.reshape(-1, x.shape[-1])
        routing = self.router(tokens)
        capacity = self.settings.capacity(len(tokens)) if self.training else None
        plan = planned(routing.chosen, self.settings.num_experts, capacity)
        self._note(plan, routing.chosen.numel())
        if self.training:  # in the forward that runs again, too: what it computes must be what ran before
            losses = router_losses(routing, plan.counts)
            if self.losses is not None:
                self.losses.append(losses)

        rows = tokens[plan.order // self.settings.experts_per_token]
        if plan.is_kept is not None:
            rows = torch.where(plan.is_kept[:, None], rows, 0.0)
        mixed = self.experts(rows, plan.ends)
        if plan.is_kept is not None:
            mixed = torch.where(plan.is_kept[:, None], mixed, 0.0)
        mixed = mixed[plan.place].view(*routing.weights.shape, -1)
        out: Tensor = (mixed * routing.weights[..., None].to(mixed.dtype)).sum(1).view(x.shape)
        return out if self.shared is None else out + self.shared(x)

    @torch.no_grad()
    def move_bias(self, rate: float) -> None:
        """Move the router's bias, if it has one, by what the experts got since it moved last."""
        self.router.move_bias(self.load, rate)
        self.load.zero_()

    @torch.no_grad()
    def _note(self, plan: Plan, num_rows: int) -> None:
        self.usage = Usage(plan.counts, num_rows - plan.ends[-1])
        if self.training and self.router.bias is not None:
            self.load += plan.counts


def expert_layers(model: nn.Module) -> list[MixtureOfExperts]:
    """The layers of a model that have experts, in order."""
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


@contextmanager
def collecting(layers: Sequence[MixtureOfExperts]) -> Iterator[list[RouterLosses]]:
    """Collect the losses of these layers, in order, from forward passes in training mode inside of the block.

    Outside of it no layer keeps any: not in the forward that runs again for backward under activation checkpointing,
    whose graph would stay alive.
    """
    collected: list[RouterLosses] = []
    for layer in layers:
        layer.losses = collected
    try:
        yield collected
    finally:
        for layer in layers:
            layer.losses = None


def usage_facts(model: nn.Module) -> dict[str, float | int | str]:
    """Return the use of a model's experts by the last forward, as facts of a perf case; without experts nothing.

    expert_counts  how often each expert was chosen, added up over the layers, as text
    busiest_ratio  the largest count over the mean of its layer, in the layer where that is largest
    idle_experts   experts that no token chose, of all layers
    dropped_share  of all choices, those beyond a capacity
    """
    used = [layer.usage for layer in expert_layers(model) if layer.usage is not None]
    if not used:
        return {}
    counts = torch.stack([usage.counts for usage in used]).cpu()
    dropped = int(torch.stack([usage.dropped for usage in used]).sum())
    return {
        "expert_counts": " ".join(map(str, counts.sum(0).tolist())),
        "busiest_ratio": float((counts.amax(1) / counts.double().mean(1)).max()),
        "idle_experts": int((counts == 0).sum()),
        "dropped_share": dropped / max(int(counts.sum()), 1),  # nothing is counted where kernels do not run
    }
