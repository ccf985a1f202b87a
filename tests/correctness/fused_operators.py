"""The fused kernels as the suite sees them: what is run, what it is held to, and the size of the terms behind it.

Shapes: x, gate, up (R, D); weight (D,); logits (N, V); targets (N,) int64.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perflab.correctness import Report, random_upstream, verify
from perflab.lab import kernels
from perflab.lab.kernels import reference

MakeInputs = Callable[[int], Mapping[str, Tensor]]
Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]
IGNORED = -100


def weighted_sum_magnitudes(x: Tensor, weight: Tensor, *, upstream: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is added up, absolutely."""
    magnitudes = {"out": x.abs() @ weight.abs()}
    if upstream:
        magnitudes["dweight"] = (upstream["out"].abs()[..., None] * x.abs()).reshape(-1, len(weight)).sum(0)
    return magnitudes


def rms_norm_magnitudes(
    x: Tensor, weight: Tensor, *, upstream: Mapping[str, Tensor], eps: float = 1e-6
) -> dict[str, Tensor]:
    """dx is a difference: for a row with one column its two terms nearly cancel."""
    if not upstream:
        return {}
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normed, d_out = (x * rstd).abs(), upstream["out"].abs()
    scaled = d_out * weight.abs()
    return {
        "dx": rstd * (scaled + normed * (scaled * normed).mean(-1, keepdim=True)),
        "dweight": (d_out * normed).reshape(-1, len(weight)).sum(0),
    }


def swiglu_magnitudes(gate: Tensor, up: Tensor, *, upstream: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The exponential's relative error grows with the gate; and 1 - sigmoid is a difference, off by 1's rounding."""
    sigmoid = torch.sigmoid(gate)
    of_sigmoid = sigmoid * (1 + gate.abs() * (1 - sigmoid))
    magnitudes = {"out": of_sigmoid * (gate * up).abs()}
    if upstream:
        d_out = upstream["out"].abs()
        magnitudes["dgate"] = d_out * up.abs() * of_sigmoid * (1 + gate.abs())
        magnitudes["dup"] = d_out * of_sigmoid * gate.abs()
    return magnitudes


def cross_entropy_magnitudes(
    logits: Tensor,
    targets: Tensor,
    *,
    upstream: Mapping[str, Tensor],
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> dict[str, Tensor]:
    """A probability's rounding grows with the distance of its logit from the row's maximum."""
    kept = targets != ignore_index
    shifted = logits - logits.amax(1, keepdim=True)
    weights = torch.softmax(logits, dim=1)
    distances = torch.where(weights > 0, shifted.abs(), 0.0)
    of_sum = 1 + (weights * distances).sum(1, keepdim=True)
    picked = torch.gather(shifted, 1, torch.where(kept, targets, 0)[:, None]).abs()
    losses = torch.where(kept, (of_sum + torch.log(torch.exp(shifted).sum(1, keepdim=True)) + picked).squeeze(1), 0.0)
    share = 1.0 / kept.sum() if reduction == "mean" else 1.0
    magnitudes = {"out": losses if reduction == "none" else losses.sum() * share}
    if upstream:
        hit = torch.nn.functional.one_hot(torch.where(kept, targets, 0), logits.shape[1])
        terms = weights * (distances + of_sum) + hit
        d_losses = (upstream["out"].abs() * share).expand(len(targets))
        magnitudes["dlogits"] = torch.where(kept[:, None], terms * d_losses[:, None], 0.0)
    return magnitudes


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator, device=generator.device)


@dataclass(frozen=True)
class Operator:
    """One fused kernel: its function, what is right, what is plain, and its inputs."""

    name: str
    inputs: tuple[str, ...]
    magnitudes: Callable[..., Mapping[str, Tensor]]

    def __str__(self) -> str:
        return self.name

    @property
    def function(self) -> Callable[..., Tensor]:
        """The kernel."""
        found: Callable[..., Tensor] = getattr(kernels, self.name)
        return found

    @property
    def plain(self) -> Callable[..., Tensor]:
        """The same mathematics in PyTorch, in the inputs' dtype."""
        found: Callable[..., Tensor] = getattr(reference, f"plain_{self.name}")
        return found

    @property
    def reference(self) -> Callable[..., Tensor]:
        """The definition in float64."""
        found: Callable[..., Tensor] = getattr(reference, f"reference_{self.name}")
        return found

    def make_inputs(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, draw: Draw = normal
    ) -> MakeInputs:
        """Inputs for rows of that shape (..., D), `draw` giving all but weight and targets. Every third is ignored."""

        def make(seed: int) -> dict[str, Tensor]:
            # Far from the seeds of the upstream gradients: of one seed and shape, they would be these very numbers.
            generator = torch.Generator(device).manual_seed(1000 + seed)

            def one(name: str) -> Tensor:
                if name == "targets":
                    targets = torch.randint(shape[-1], shape[:1], generator=generator, device=device)
                    targets[2::3] = IGNORED
                    return targets
                numbers = normal(shape[-1:], generator) if name == "weight" else draw(shape, generator)
                return numbers.to(dtype)

            return {name: one(name) for name in self.inputs}

        return make

    def hold(
        self,
        make_inputs: MakeInputs,
        *,
        candidate: Callable[..., Tensor] | None = None,
        upstream: Callable[[Tensor, int], Tensor] = random_upstream,
        **settings: Any,
    ) -> tuple[Report, ...]:
        """Verify the kernel, or the candidate, forward and backward."""
        return verify(
            candidate or self.function,
            make_inputs,
            reference=self.reference,
            plain=self.plain,
            magnitudes=self.magnitudes,
            gradient_of=("out",),
            upstream=upstream,
            settings=settings,
        )


WEIGHTED_SUM = Operator("weighted_sum", ("x", "weight"), weighted_sum_magnitudes)
RMS_NORM = Operator("rms_norm", ("x", "weight"), rms_norm_magnitudes)
SWIGLU = Operator("swiglu", ("gate", "up"), swiglu_magnitudes)
CROSS_ENTROPY = Operator("cross_entropy", ("logits", "targets"), cross_entropy_magnitudes)
OPERATORS = (WEIGHTED_SUM, RMS_NORM, SWIGLU, CROSS_ENTROPY)
