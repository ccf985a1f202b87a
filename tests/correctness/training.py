"""What the tests of the training step share: the smallest lab model, gradients of a step, and what they should be."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from perflab.lab.models import build_model
from perflab.lab.train import TrainingStep, cross_entropy_loss


def tiny(device: torch.device) -> nn.Module:
    """One layer of `tiny`, the same weights every time, for 16 tokens of 50."""
    torch.manual_seed(0)
    return build_model("tiny", vocab_size=50, context_length=16, num_layers=1, device=device)


def gradients_of(step: TrainingStep) -> dict[str, Tensor]:
    """The gradient of the step's whole batch, parameter by parameter; no update."""
    for _ in range(step.config.micro_batches):
        step.backward(step.forward())
    found = {name: parameter.grad for name, parameter in step.model.named_parameters()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def reference_gradients(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """The gradient of the mean loss over all tokens at once, in float64."""
    model = copy.deepcopy(model).double()
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = cross_entropy_loss(model(tokens), tokens)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
