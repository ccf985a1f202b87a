"""One training step of a language model, in the three phases that are timed apart.

Tokens (B, T) -> logits (B, T, V) -> loss, a scalar; then gradients; then AdamW (Loshchilov & Hutter 2019,
algorithm 2).

    step = TrainingStep(model, tokens)
    perf.step(forward=step.forward, backward=step.backward, optimizer=step.optimizer)
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from perflab.lab.train.loss import cross_entropy_loss


class TrainingStep:
    """A model, one batch and an AdamW optimizer; each call of a phase does that phase's work once.

    Args:
        model: maps integer tokens (B, T) to logits (B, T, V); put into training mode.
        tokens: the batch, (B, T) int64, on the model's device; used again in every step.
        learning_rate, weight_decay: AdamW's.
        autocast_dtype: `torch.bfloat16` runs the forward under autocast, `None` in the weights' own dtype.

    Raises:
        ValueError: the model has no parameters, the batch is on another device, or autocast in a dtype that
            needs more than this step does.
    """

    def __init__(
        self,
        model: nn.Module,
        tokens: Tensor,
        *,
        learning_rate: float = 3e-4,
        weight_decay: float = 0.1,
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        parameter = next(model.parameters(), None)
        if parameter is None:
            raise ValueError(f"{type(model).__name__} has no parameters; wanted a model that can be trained")
        if tokens.device != parameter.device:
            raise ValueError(
                f"tokens on {tokens.device}, model on {parameter.device}; move the batch with "
                f"tokens.to({str(parameter.device)!r})"
            )
        if autocast_dtype not in (None, torch.bfloat16):
            raise ValueError(
                f"autocast_dtype={autocast_dtype}: wanted torch.bfloat16 or None; float16 gradients underflow "
                "without loss scaling, which this step does not do"
            )
        self.model = model.train()
        self.tokens = tokens
        self.autocast_dtype = autocast_dtype
        # Fused: one implementation on CPU and CUDA alike, and no temporary as large as the parameters.
        self.adamw = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)

    def forward(self) -> Tensor:
        """Loss of the batch, a scalar with the graph behind it."""
        with self._autocast():
            logits: Tensor = self.model(self.tokens)
        return cross_entropy_loss(logits, self.tokens)

    def backward(self, loss: Tensor) -> None:
        """Gradients of `loss` into the parameters."""
        loss.backward()  # type: ignore[no-untyped-call]

    def optimizer(self) -> None:
        """Update the parameters and let the gradients go, so that the next forward starts without them."""
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)

    def __call__(self) -> Tensor:
        """A whole step; returns the loss before the update, detached so that it keeps no graph alive."""
        loss = self.forward()
        self.backward(loss)
        self.optimizer()
        return loss.detach()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.tokens.device.type, dtype=self.autocast_dtype)
