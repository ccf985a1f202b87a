"""The switches that the study of optimisations turns, one at a time, and the ladder of those that people combine.

A switch is a name and what it changes: fields of `ModelConfig`, fields of `TrainingConfig`, or the seed. Plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch

from perflab.lab.attention import IMPLEMENTATIONS, PROVEN

BASELINE = "baseline"
_TRAINING = tuple(name for name, claims in PROVEN.items() if claims.trains)
_COMPILED = tuple(name for name, claims in IMPLEMENTATIONS.items() if claims.compiles)
SEEDS = ("seed-1", "seed-2", "seed-3")
"""The same with other weights and batches: what losses differ by for no reason, and how fast one thing is twice."""


@dataclass(frozen=True)
class Switch:
    """One way to train, told by what differs from the baseline.

    model     fields of `ModelConfig`; a model that is not the lab's cannot be switched so
    training  fields of `TrainingConfig`
    compiles  what torch.compile is given, if anything: compiling that again is expected to take as long
    against   what it is compared with, so that one thing differs alone
    context_length  of the batches, which hold as many tokens as the baseline's; None: as long as those
    """

    name: str
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    compiles: str | None = None
    against: str = BASELINE
    context_length: int | None = None

    def __str__(self) -> str:
        return self.name

    def why_not_on(self, device_type: str) -> str | None:
        """Why there is nothing to see of it on that type of device; None where there is."""
        claims = IMPLEMENTATIONS[self.model.get("attention", "sdpa")]
        fused = any(self.model.get(name) for name in ("fused_norm", "fused_feed_forward"))
        if not claims.runs_on(device_type):
            return f"{claims.name} does not run on {device_type}"
        if not claims.on(device_type).gradients:
            return f"{claims.name} has no backward on {device_type}"
        if device_type != "cpu":
            return None
        if claims.needs_triton or fused or self.training.get("fused_loss"):
            return "Triton's kernels are interpreted on a CPU, so their time says nothing"
        if self.training.get("compile") == "reduce-overhead":
            return "reduce-overhead captures CUDA graphs; on a CPU it is compile-default"
        if self.training.get("empty_cache"):
            return "PyTorch keeps no blocks of a CPU's memory that a step could give back"
        if self.training.get("cudnn_benchmark"):
            return "there is no cuDNN on a CPU"
        return None


def switches(num_steps: int, device_type: str) -> list[Switch]:
    """Every switch of the model and of the training step, the baseline first, what compiles last.

    Args:
        num_steps: training steps before the loss is read, which the schedule is laid over.
        device_type: where; attention that does not take float32 there is switched under bf16, and held against that.
    """
    return [
        Switch(BASELINE),
        *(Switch(name, training={"precision": name}) for name in ("tf32", "fp16", "bf16", "pure-bf16")),
        Switch("cudnn-benchmark", training={"cudnn_benchmark": True}),
        Switch("empty-cache", training={"empty_cache": True}),
        *(_attention(name, device_type) for name in _TRAINING if name not in ("sdpa", "reference", *_COMPILED)),
        *(Switch(f"adamw-{name}", training={"optimizer": name}) for name in ("loop", "foreach")),
        Switch("accumulate-4", training={"micro_batches": 4}),
        *(Switch(f"checkpoint-{name}", training={"checkpointing": name}) for name in ("every-block", "selective")),
        Switch("clip-1.0", training={"max_grad_norm": 1.0}),
        Switch("cosine", training={"warmup_steps": max(1, num_steps // 10), "total_steps": num_steps}),
        Switch("loss-clamp", training={"loss_clamp": 10.0}),
        Switch("fused-norm", model={"fused_norm": True}),
        Switch("fused-swiglu", model={"fused_feed_forward": True}),
        Switch("fused-loss", training={"fused_loss": True}),
        Switch("layer-norm", model={"norm": "layer"}),
        Switch("learned-positions", model={"positions": "learned"}),
        Switch("gelu", model={"feed_forward": "gelu"}),
        Switch("tied-head", model={"tied_head": True}),
        Switch("gqa-2", model={"num_kv_heads": 2}),
        Switch("mqa", model={"num_kv_heads": 1}),
        # PyTorch's own attention has no window.
        Switch("window-32", model={"window": 32, "attention": "naive"}, against="attention-naive"),
        Switch("dropout-attention", model={"attention_dropout": 0.1}),
        Switch("dropout-residual", model={"residual_dropout": 0.1}),
        Switch("dropout-embedding", model={"embedding_dropout": 0.1}),
        *(Switch(name, seed=seed) for seed, name in enumerate(SEEDS, start=1)),
        Switch("compile-attention", training={"compile": "attention"}, compiles="attention"),
        Switch("compile-default", training={"compile": "default"}, compiles="model"),
        Switch("compile-reduce-overhead", training={"compile": "reduce-overhead"}, compiles="model"),
        Switch("compile-max-autotune", training={"compile": "max-autotune"}, compiles="model, autotuned"),
        *(_attention(name, device_type) for name in _COMPILED),
    ]


def _attention(name: str, device_type: str) -> Switch:
    compiles = name if name in _COMPILED else None
    if torch.float32 in IMPLEMENTATIONS[name].on(device_type).dtypes:
        return Switch(f"attention-{name}", model={"attention": name}, compiles=compiles)
    model, training = {"attention": name}, {"precision": "bf16"}
    return Switch(f"attention-{name}", model, training, compiles=compiles, against="bf16")


# --- the ladder --------------------------------------------------------------------------------------------------

BOTTOM = "textbook"
"""Attention written out, fp32, eager, AdamW in a loop: what a textbook has."""
_RUNGS = ("bf16", "flash", "compile", "fused")
"""bf16 first: on a GPU FlashAttention takes no float32."""


def ladder(device_type: str, *, ours: bool = True) -> list[Switch]:
    """From the textbook's step to all four optimisations, one more a rung; then every two of them by themselves.

    Of a model that is not the lab's attention and kernels cannot be switched: its ladder is without `flash`.
    """
    rungs = _RUNGS if ours else tuple(name for name in _RUNGS if name != "flash")
    up = [rungs[:count] for count in range(1, len(rungs) + 1)]
    pairs = [pair for pair in combinations(rungs, 2) if pair not in up]
    wanted = [*up, *pairs]
    cheap = [names for names in wanted if "compile" not in names]
    return [
        _combined((), device_type, ours),
        *(
            _combined(names, device_type, ours)
            for names in [*cheap, *(names for names in wanted if names not in cheap)]
        ),
    ]


def _combined(names: tuple[str, ...], device_type: str, ours: bool) -> Switch:
    model: dict[str, Any] = {"attention": "naive"} if ours else {}
    training: dict[str, Any] = {"optimizer": "loop"}
    for name in names:
        more_model, more_training = _rung(name, device_type)
        model |= more_model if ours else {}
        training |= more_training
    return Switch(
        "+".join(names) or BOTTOM, model, training, compiles="model" if "compile" in names else None, against=BOTTOM
    )


def _rung(name: str, device_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if name == "flash":
        return {"attention": "sdpa"}, {}
    if name == "bf16":
        return {}, {"precision": "bf16"}
    if name == "compile":
        return {}, {"compile": "default"}
    if device_type == "cpu":  # of what is fused, the optimizer alone is no Triton kernel
        return {}, {"optimizer": "fused"}
    return {"fused_norm": True, "fused_feed_forward": True}, {"optimizer": "fused", "fused_loss": True}
