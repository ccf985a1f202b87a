"""A training run: so many steps over so many batches, and how well the model foresees text that it has not seen.

B batch, T sequence; losses are means over the B (T - 1) tokens of a batch that have one before them, in nats.

What a step is stands in `step.py`, what a batch holds in `loader.py`; seconds are nobody's business here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from perflab.lab.train.loss import cross_entropy_loss


@dataclass(frozen=True)
class TrainingRun:
    """The result of a training run: the loss of every step, before the step's update."""

    losses: tuple[float, ...]
    tokens: int
    """The number of tokens in all batches together."""

    def final_loss(self, steps: int = 10) -> float:
        """Mean loss of the last so many steps, or of all if there were fewer; one batch alone is noise.

        Raises:
            ValueError: `steps` is not positive.
        """
        if steps < 1:
            raise ValueError(f"steps={steps}: wanted a mean of 1 step or more")
        last = self.losses[-steps:]
        return sum(last) / len(last)


def train(step: Callable[[Tensor], Tensor], batches: Iterable[Tensor], num_steps: int) -> TrainingRun:
    """Take `num_steps` steps, each on the next batch.

    Losses are read when all is done: reading one makes the host wait for the device.

    Args:
        step: takes a batch (B, T) int64, trains on it, and returns its loss, a scalar without a graph.
        batches: such as a `TextLoader`; no more of them are taken than there are steps.

    Raises:
        ValueError: `num_steps` is not positive, the batches end early, or a loss still holds its graph.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps={num_steps}: give num_steps=1 or more")
    losses: list[Tensor] = []
    tokens = 0
    for batch in itertools.islice(batches, num_steps):
        loss = step(batch)
        if loss.requires_grad:
            raise ValueError(
                "the step returned a loss that holds its graph, and so every activation of its batch; "
                "return loss.detach()"
            )
        losses.append(loss.clone())  # a step that replays a CUDA graph hands out the same memory every time
        tokens += batch.numel()
    if len(losses) < num_steps:
        raise ValueError(
            f"the batches ended after {len(losses)} of {num_steps} steps; give an endless iterator such as TextLoader, "
            f"or num_steps={len(losses)}"
        )
    return TrainingRun(tuple(torch.stack(losses).tolist()), tokens)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Tensor]) -> float:
    """Mean loss in nats of a model over some batches, without gradients or dropout; its mode is as before afterwards.

    Args:
        model: maps integer tokens (B, T) to logits (B, T, V).
        batches: finitely many, such as `itertools.islice(TextLoader(text.held_out, ...), 8)`; each counts by its
            foreseen tokens.

    Raises:
        ValueError: there is no batch.
    """
    was_training = model.training
    model.eval()
    try:
        weighted = [
            (cross_entropy_loss(model(batch), batch).double() * (foreseen := batch[:, 1:].numel()), foreseen)
            for batch in batches
        ]
    finally:
        model.train(was_training)
    if not weighted:
        raise ValueError("no batches to evaluate on; give one or more, such as islice(TextLoader(...), 8)")
    return float(torch.stack([loss for loss, _ in weighted]).sum() / sum(count for _, count in weighted))
