"""Mixtures of experts as the suite sees them: the definition, token by token; what is run; and what a fault would give.

n tokens, d width, E experts, k a token, F width of an expert. Inputs: x (n, d), router (E, d), gate and up (E, d, F),
down (E, F, d); outputs: out (n, d), the balance loss and the z loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from perflab.correctness import Evidence, Hypothesis, Report, find_causes, verify
from perflab.lab.experts import products
from perflab.lab.experts.config import ExpertConfig
from perflab.lab.experts.mixture import MixtureOfExperts, collecting
from perflab.lab.models import ModelConfig

OUTPUTS = ("out", "balance", "z")
EXPERTS, WIDTH, INNER = 6, 24, 16
NEVER_CHOSEN = 1
"""An expert in the middle that no token wants."""
BIAS = torch.tensor([0.02, 0.0, -0.02, 0.01, -0.01, 0.03])
PLAIN = ExpertConfig(num_experts=EXPERTS)


def definition(
    x: Tensor, router: Tensor, gate: Tensor, up: Tensor, down: Tensor, *, experts: ExpertConfig, fault: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    """The equations of `perflab.lab.experts`, a token at a time, in the dtype of x; with a fault if one is named."""
    capacity = None  # not by ExpertConfig.capacity, which is held to this
    if experts.capacity_factor is not None:
        capacity = math.ceil(experts.capacity_factor * len(x) * experts.experts_per_token / experts.num_experts)
        capacity += fault == "capacity"
    logits, probabilities, weights, chosen = x @ router.mT, [], [], []
    logits = logits.to(torch.promote_types(x.dtype, torch.float32))
    for z in logits:
        if experts.router == "sigmoid":
            scores = torch.sigmoid(z)
            wanted = scores + BIAS.to(scores)
            picked = wanted.argsort(descending=True)[: experts.experts_per_token]
            weighing = wanted if fault == "bias" else scores
            weights.append(weighing[picked] / weighing[picked].sum())
            probabilities.append(scores / scores.sum())
        else:
            p = torch.exp(z - z.max()) / torch.exp(z - z.max()).sum()
            picked = z.argsort(descending=True)[: experts.experts_per_token]
            before = experts.router == "softmax" or fault == "before"
            weights.append(p[picked] if before else p[picked] / p[picked].sum())
            probabilities.append(p)
        chosen.append(picked.tolist())
    taken, rows = [0] * experts.num_experts, []
    for t, token in enumerate(x):
        y = torch.zeros_like(token)
        for position, e in enumerate(chosen[t]):
            taken[e] += 1
            if capacity is not None and taken[e] > capacity:
                if fault == "rows past the end":
                    y = y + torch.nan * token
                continue
            hidden = F.silu(token @ gate[e]) * (token @ up[e])
            weight = weights[t - 1 if fault == "another token" else t][position]
            y = y + weight.to(x.dtype) * (hidden @ down[e])
        rows.append(y)
    share = torch.tensor(taken, dtype=logits.dtype) / sum(taken)
    mean = torch.softmax(logits, 0).mean(0) if fault == "axis" else torch.stack(probabilities).mean(0)
    balance = len(taken) * (share * mean).sum()
    return torch.stack(rows), balance, torch.logsumexp(logits, -1).square().mean()


def config_of(experts: ExpertConfig) -> ModelConfig:
    """A model whose experts are INNER wide."""
    parts = experts.experts_per_token + experts.shared_experts
    return ModelConfig(
        d_model=WIDTH, d_ff=parts * INNER, num_layers=1, num_heads=1, feed_forward="moe", experts=experts
    )


def make_inputs(num_tokens: int, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    """Tokens that like experts in an order of their own, so clearly that no rounding changes a choice."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x = 0.5 * normal(num_tokens, WIDTH)
    liked = torch.stack([torch.randperm(EXPERTS, generator=generator) for _ in range(num_tokens)]).double()
    liked[:, 0] -= 1.5  # a crowd at the first, so that a capacity leaves some out
    liked[:, NEVER_CHOSEN] += EXPERTS
    x[:, :EXPERTS] = 3 - liked.float()
    router = torch.eye(EXPERTS, WIDTH) + 0.02 * normal(EXPERTS, WIDTH)
    inner = (normal(EXPERTS, WIDTH, INNER) / WIDTH**0.5 for _ in range(2))
    return {
        "x": x.to(dtype),
        "router": router.to(dtype),
        **{name: weight.to(dtype) for name, weight in zip(("gate", "up"), inner, strict=True)},
        "down": (normal(EXPERTS, INNER, WIDTH) / INNER**0.5).to(dtype),
    }


def layer_of(experts: ExpertConfig) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """The layer in training mode as a function of the inputs."""
    layer = MixtureOfExperts(config_of(experts)).train()
    names = ("router.project.weight", "experts.gate", "experts.up", "experts.down")
    buffers = {"router.bias": BIAS} if experts.router == "sigmoid" else {}

    def run(x: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with collecting([layer]) as losses:
            out = functional_call(layer, {**dict(zip(names, weights, strict=True)), **buffers}, (x,))
        (of_layer,) = losses
        return out, of_layer.balance, of_layer.z

    return run


def uninitialised_grouped_mm(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
    """`grouped_mm` that leaves NaN where PyTorch's may leave what was in memory: rows past the end, empty groups.

    On a CPU PyTorch's own happens to write zeros for an empty group.
    """
    out: Tensor = torch.nn.functional.grouped_mm(a, b, offs=offs)
    if a.ndim == b.ndim == 2:
        out[products.empty_groups(offs)] = torch.nan
    else:
        out[int(offs[-1]) :] = torch.nan
    return out


CAUSES = {
    "another token": "a token's experts are weighed by the weights of the token before it",
    "capacity": "an expert takes one token more than its capacity",
    "before": "weights are the softmax over all experts, and not over the chosen",
    "bias": "the bias that helps to choose experts is in their weights, too",
    "rows past the end": "rows that a capacity left out were read behind the last offset, where nothing was written",
    "axis": "the balance loss takes its probabilities over the tokens, and not over the experts",
}


def _with_fault(fault: str, evidence: Evidence) -> Mapping[str, Tensor]:
    """What the definition with the fault gives: outputs, and the gradients of its inputs."""
    leaves = {name: tensor.detach().double().requires_grad_() for name, tensor in evidence.inputs.items()}
    outputs = definition(*leaves.values(), experts=evidence.settings["experts"], fault=fault)
    found = dict(zip(OUTPUTS, outputs, strict=True))
    upstream = [evidence.upstream[name].double() for name in OUTPUTS]
    gradients = torch.autograd.grad(outputs, [*leaves.values()], upstream, allow_unused=True)
    return found | {f"d{name}": one for name, one in zip(leaves, gradients, strict=True) if one is not None}


def _uninitialised_gradient(evidence: Evidence) -> Mapping[str, Tensor]:
    found = {}
    for name in ("dgate", "dup", "ddown"):
        gradient = evidence.wanted[name].clone()
        gradient[NEVER_CHOSEN] = torch.nan
        found[name] = gradient
    return found


HYPOTHESES = (
    *(Hypothesis(name, cause, partial(_with_fault, name)) for name, cause in CAUSES.items()),
    Hypothesis(
        "empty expert",
        "the gradient of an expert without tokens holds what was in memory, and not zero",
        _uninitialised_gradient,
    ),
)


def explain(evidence: Evidence) -> Sequence[str]:
    """The likely causes."""
    return [str(one) for one in find_causes(evidence, HYPOTHESES)]


@dataclass(frozen=True)
class Case:
    """What is asked of a mixture."""

    experts: ExpertConfig
    num_tokens: int
    dtype: torch.dtype

    def __str__(self) -> str:
        e = self.experts
        capacity = "" if e.capacity_factor is None else f"-capacity{e.capacity_factor:g}"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{e.expert_product}-{e.router}-k{e.experts_per_token}{capacity}-{self.num_tokens}-{dtype}"


def hold(case: Case) -> tuple[Report, ...]:
    """Verify the layer, forward and backward, on poisoned memory."""
    layer = layer_of(case.experts)

    def candidate(*inputs: Tensor, experts: ExpertConfig) -> Any:
        return layer(*inputs)

    return verify(
        candidate,
        lambda seed: make_inputs(case.num_tokens, case.dtype, seed),
        reference=definition,
        plain=definition,
        outputs=OUTPUTS,
        gradient_of=OUTPUTS,
        settings={"experts": case.experts},
        explain=explain,
    )


def with_settings(**settings: Any) -> ExpertConfig:
    """A mixture of EXPERTS with settings."""
    return replace(PLAIN, **settings)
