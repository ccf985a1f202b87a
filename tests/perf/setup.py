"""What a model case is run on: which model, on what shape, trained how; what that costs, before anything is built.

Shapes: tokens (B, T) int64 -> logits (B, T, V).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perflab import Perf
from perflab.lab.models import ModelConfig, ModelCost, build_model, is_size, model_cost, size_config
from perflab.lab.models.memory import Mode
from perflab.lab.train import PRECISIONS, TrainingConfig, TrainingStep, random_tokens

VOCAB_SIZE = 10_000
"""That of the published measurements."""
DEFAULT_BATCH_SIZE = 4
COMPILE_SECONDS = {"cpu": 15.0, "cuda": 40.0}
"""Guess of one compilation, forward and backward, where nothing is cached yet."""
_TRAINING = frozenset(one.name for one in fields(TrainingConfig))


@dataclass(frozen=True)
class Setup:
    """One model, one shape, one way to train.

    changes   fields of `ModelConfig` that differ from the named size's; for the lab's own models alone
    training  the training step's switches; its precision is that of a forward pass alone, too
    seed      of weights and of random tokens
    """

    model_name: str
    batch_size: int
    context_length: int
    device: torch.device
    training: TrainingConfig = field(default_factory=TrainingConfig)
    changes: Mapping[str, Any] = field(default_factory=dict)
    vocab_size: int = VOCAB_SIZE
    seed: int = 0

    @property
    def is_ours(self) -> bool:
        """Whether the model is one of the lab's, so that its switches and its cost are known."""
        return is_size(self.model_name)

    @property
    def config(self) -> ModelConfig:
        """The configuration of a model of the lab's."""
        return size_config(
            self.model_name, vocab_size=self.vocab_size, context_length=self.context_length, **self.changes
        )

    def switched(self, *, training: Mapping[str, Any], changes: Mapping[str, Any], seed: int = 0) -> Setup:
        """The same with switches changed.

        Raises:
            pytest.skip.Exception: a switch of the lab's models, and the model is none.
        """
        if changes and not self.is_ours:
            pytest.skip(f"a switch of the lab's models, and {self.model_name} is none: {', '.join(changes)}")
        return replace(
            self, training=replace(self.training, **training), changes={**self.changes, **changes}, seed=seed
        )

    def resized(self, *, batch_size: int, context_length: int, **switches: Any) -> Setup:
        """The same at other sizes, with switches changed: of training (``precision``), of the model (``attention``)."""
        training = {name: value for name, value in switches.items() if name in _TRAINING}
        changes = {name: value for name, value in switches.items() if name not in _TRAINING}
        sized = replace(self, batch_size=batch_size, context_length=context_length)
        return sized.switched(training=training, changes=changes)

    def remedies(self, mode: Mode) -> dict[str, dict[str, str]]:
        """What would make the case smaller, by name: switches that it does not have on already."""
        known: dict[str, dict[str, str]] = {
            "bf16": {"precision": "bf16"},
            "checkpointing": {"checkpointing": "every-block"},
            "flash attention": {"attention": "sdpa"},
        }
        if mode in ("inference", "forward"):
            del known["checkpointing"]  # who runs no backward keeps nothing for it
        if not self.is_ours:
            return {name: what for name, what in known.items() if name == "bf16" and not self._has(what)}
        return {name: what for name, what in known.items() if not self._has(what)}

    def _has(self, switches: Mapping[str, str]) -> bool:
        return all(
            getattr(self.training if name in _TRAINING else self.config, name) == value
            for name, value in switches.items()
        )

    def declare(self, perf: Perf, mode: Mode, *, setup_calls: float = 0, setup_seconds: float = 0.0) -> None:
        """Skip the case if it does not fit, before anything is built, and say how much work one call is.

        Args:
            perf: the case's fixture.
            mode: what one call is.
            setup_calls: calls that the case makes before it measures.
            setup_seconds: time that it takes before that besides, to compile for example.
        """
        perf.work(tokens=self.batch_size * self.context_length)
        if not self.is_ours:
            perf.requires(setup_seconds=setup_seconds)  # nobody knows what a model of the user's own costs
            return
        cost = self.cost(mode)
        perf.requires(
            memory_bytes=cost.memory_bytes,
            flops=cost.flops,
            precision=self.matmul_dtype,
            setup_calls=setup_calls,
            setup_seconds=setup_seconds,
        )
        perf.work(flops=cost.flops)

    @property
    def matmul_dtype(self) -> torch.dtype:
        """What most of the operations compute in."""
        precision = PRECISIONS[self.training.precision]
        return precision.autocast or precision.weights

    def cost(self, mode: Mode) -> ModelCost:
        """What one call needs, predicted."""
        precision = PRECISIONS[self.training.precision]
        return model_cost(
            self.config,
            batch_size=self.batch_size,
            seq_len=self.context_length,
            mode=mode,
            param_dtype=precision.weights,
            autocast_dtype=precision.autocast,
            checkpointing=self.training.checkpointing,
            micro_batches=self.training.micro_batches,
            optimizer=self.training.optimizer,
        )

    def model(self) -> nn.Module:
        """The model, with weights from the seed, in the precision's dtype."""
        torch.manual_seed(self.seed)
        name, length = self.model_name, self.context_length
        try:
            model = build_model(
                name, vocab_size=self.vocab_size, context_length=length, device=self.device, **self.changes
            )
        except (ImportError, TypeError, ValueError) as error:
            pytest.fail(f"--model={name}: {error}", pytrace=False)
        return PRECISIONS[self.training.precision].prepare(model)

    def tokens(self) -> Tensor:
        """A batch of random tokens (B, T)."""
        return random_tokens(
            self.batch_size, self.context_length, vocab_size=self.vocab_size, seed=self.seed, device=self.device
        )

    def training_step(self, tokens: Tensor | None = None) -> TrainingStep:
        """A training step of the model, on random tokens or on these."""
        return TrainingStep(self.model(), self.tokens() if tokens is None else tokens, self.training)


def measure_step(perf: Perf, step: TrainingStep) -> Tensor:
    """Measure a whole training step, its phases apart; returns the loss of its last micro-batch."""
    loss: Tensor = perf.step(**phases_of(step))
    return loss


def phases_of(step: TrainingStep) -> dict[str, Any]:
    """A whole training step as ``perf.step`` takes it."""
    return {
        "forward": step.forward,
        "backward": step.backward,
        "optimizer": step.optimizer,
        "micro_batches": step.config.micro_batches,
    }
