"""The switches of a training step: what is refused, and what is said then."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from perflab.lab.train import TrainingConfig

pytestmark = pytest.mark.correctness

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"precision": "bf-16"}, "precision='bf-16' (did you mean 'bf16'?): wanted one of fp32, tf32, fp16, bf16, "),
        ({"precision": None}, "precision=None: wanted one of fp32, tf32"),
        ({"compile": "reduce_overhead"}, "compile='reduce_overhead' (did you mean 'reduce-overhead'?): wanted one of"),
        ({"compile": True}, "compile=True: wanted one of eager, default, reduce-overhead, max-autotune, attention"),
        ({"optimizer": "Fused"}, "optimizer='Fused' (did you mean 'fused'?): wanted one of loop, foreach, fused"),
        ({"checkpointing": "every"}, "(did you mean 'every-block'?): wanted one of none, every-block, selective"),
        ({"micro_batches": 0}, "micro_batches=0: wanted 1 or more; give micro_batches=1 or more"),
        ({"warmup_steps": -1}, "warmup_steps=-1: wanted 0 or more; give warmup_steps=0 or more"),
        ({"total_steps": 0}, "total_steps=0: wanted 1 or more"),
        ({"warmup_steps": 5, "total_steps": 5}, "total_steps=5 with warmup_steps=5 leaves no step for the cosine; g"),
        ({"learning_rate": 0.0}, "learning_rate=0.0: wanted a finite number above 0"),
        ({"learning_rate": NAN}, "learning_rate=nan: wanted a finite number above 0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1: wanted a finite number at least 0"),
        ({"final_learning_rate_share": 1.5}, "final_learning_rate_share=1.5: wanted a finite number at least 0 and at"),
        ({"betas": (0.9, 1.0)}, "betas[1]=1.0: wanted a finite number at least 0 and below 1"),
        ({"max_grad_norm": 0}, "max_grad_norm=0: wanted a finite number above 0, or None to switch it off"),
        ({"loss_clamp": INF}, "loss_clamp=inf: wanted a finite number above 0, or None to switch it off"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_with_what_was_wanted(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"wanted|leaves") as caught:
        TrainingConfig(**settings)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"micro_batches": 2.0}, "micro_batches=2.0: wanted an integer, got float"),
        ({"micro_batches": True}, "micro_batches=True: wanted an integer, got bool"),
        ({"total_steps": "100"}, "total_steps='100': wanted an integer, got str"),
        ({"learning_rate": None}, "learning_rate=None: wanted a number, got NoneType"),
        ({"betas": 0.9}, "betas=0.9: wanted a tuple of two numbers, such as betas=(0.9, 0.999)"),
        ({"betas": (0.9, "0.999")}, "betas[1]='0.999': wanted a number, got str"),
        ({"max_grad_norm": True}, "max_grad_norm=True: wanted a number, or None to switch it off, got bool"),
        ({"fused_loss": "yes"}, "fused_loss='yes': wanted True or False"),
        ({"cudnn_benchmark": 1}, "cudnn_benchmark=1: wanted True or False"),
        ({"empty_cache": "yes"}, "empty_cache='yes': wanted True or False"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_was_wanted(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        TrainingConfig(**settings)
    assert text in str(caught.value)


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
