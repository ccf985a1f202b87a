"""The switches of a training step: what is refused, and what is said then."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.lab.train import TrainingConfig
from tests.correctness.refusals import refusals_of

pytestmark = pytest.mark.correctness

INF, NAN = float("inf"), float("nan")


def test_a_value_out_of_range_is_refused_with_what_was_wanted(snapshot: SnapshotAssertion) -> None:
    asked = [
        {"precision": "bf-16"},
        {"precision": None},
        {"compile": "reduce_overhead"},
        {"compile": True},
        {"optimizer": "Fused"},
        {"checkpointing": "every"},
        {"micro_batches": 0},
        {"warmup_steps": -1},
        {"total_steps": 0},
        {"warmup_steps": 5, "total_steps": 5},
        {"learning_rate": 0.0},
        {"learning_rate": NAN},
        {"weight_decay": -0.1},
        {"final_learning_rate_share": 1.5},
        {"betas": (0.9, 1.0)},
        {"max_grad_norm": 0},
        {"loss_clamp": INF},
    ]
    assert refusals_of(lambda settings: TrainingConfig(**settings), of=asked) == snapshot


def test_a_value_of_another_kind_is_refused_with_what_was_wanted(snapshot: SnapshotAssertion) -> None:
    asked = [
        {"micro_batches": 2.0},
        {"micro_batches": True},
        {"total_steps": "100"},
        {"learning_rate": None},
        {"betas": 0.9},
        {"betas": (0.9, "0.999")},
        {"max_grad_norm": True},
        {"fused_loss": "yes"},
        {"cudnn_benchmark": 1},
        {"empty_cache": "yes"},
    ]
    assert refusals_of(lambda settings: TrainingConfig(**settings), of=asked) == snapshot


def test_every_switch_is_checked() -> None:
    for switch in fields(TrainingConfig):
        with pytest.raises((TypeError, ValueError), match=f"^{switch.name}="):
            TrainingConfig(**{switch.name: object()})


def test_a_configuration_does_not_change_and_is_equal_to_its_like() -> None:
    config = TrainingConfig(precision="bf16")
    with pytest.raises(FrozenInstanceError):
        config.precision = "fp32"  # type: ignore[misc]
    assert config == TrainingConfig(precision="bf16") != TrainingConfig()
    assert len({config, TrainingConfig(precision="bf16")}) == 1
