"""The switches of a training step, as one frozen configuration that is checked when it is made.

None of them is part of the model's architecture: weights trained with one configuration load under any other.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass

from perflab.lab.models import CHECKPOINTING
from perflab.lab.parallel.exchange import EXCHANGES, IN_PARTS
from perflab.lab.train.compiled import CUDA_GRAPH_MODES
from perflab.lab.train.precision import PRECISIONS

COMPILE = ("eager", "default", "reduce-overhead", "max-autotune", "attention")
"""Values of `compile`: torch.compile gets nothing, the model in one of its modes, or each block's attention."""
OPTIMIZERS = ("loop", "foreach", "fused")
"""The ways of AdamW over the parameters: one by one, operator by operator over all, all in one kernel."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The settings of a training step. The defaults are a plain float32 step with PyTorch's fused AdamW.

    Args:
        precision: one of `PRECISIONS`: fp32, tf32, fp16, bf16, pure-bf16.
        compile: one of `COMPILE`.
        optimizer: one of `OPTIMIZERS`; the same AdamW.
        learning_rate, weight_decay, betas: AdamW's; the rate is the highest of the schedule.
        micro_batches: parts that the batch is split into, their gradients added up before the update. The activations
            of one part are alive at a time.
        checkpointing: one of `CHECKPOINTING`.
        max_grad_norm: where the Euclidean norm n of the whole gradient is above it, the gradient is scaled by
            max_grad_norm / (n + 1e-6), PyTorch's `clip_grad_norm_` (Pascanu et al. 2013, section 3.2); `None`: never.
        warmup_steps, total_steps, final_learning_rate_share: the schedule, see `schedule.py`.
        loss_clamp: losses above are replaced by it, and their gradient by zero: the step then learns nothing from
            that (micro-)batch but still decays weights and moments. `None`, the default: never.
        balance_weight, router_z_weight: of both losses of a model with experts (`perflab.lab.experts.router`) beside
            its own; 0.01 and 0.001 are of Fedus et al. 2021, section 2.2, and Zoph et al. 2022, section 3.2.
        router_bias_rate: how far a step moves the bias of a "sigmoid" router; 0.001 as in DeepSeek-V3, section 4.2.
        fused_loss: cross-entropy by the lab's Triton kernel.
        cudnn_benchmark: `torch.backends.cudnn.benchmark` during the step: cuDNN tries its convolutions and keeps the
            fastest. A model without convolutions, such as `TransformerLM`, is not changed by it.
        empty_cache: give back the blocks that the accelerator's allocator keeps, after each update, as scripts do that
            ran out of memory; the next step asks the driver for them again. A CPU keeps none.
        exchange: how the processes of `torch.distributed` make their gradients one: one of
            `perflab.lab.parallel.EXCHANGES`, or "none" for a process that trains alone. With "tensor" all processes
            have to be given the same batch, with the others each its own.
        bucket_mb: the size in MiB of the buckets of "bucketed" and "ddp".
        shard_optimizer: keep AdamW's state of each parameter in one process only (ZeRO stage 1); wants an exchange.
        skip_non_finite: skip steps whose loss is not finite, see `skipping.py`. On a GPU AdamW that is not fused waits
            for the device then. `False`: plain PyTorch, for comparing optimizers; fp16's loss scaling skips anyway.

    Raises:
        ValueError: a value is not among its choices, out of range, or does not fit another.
        TypeError: a number is not of the kind that is wanted.
    """

    precision: str = "fp32"
    compile: str = "eager"
    optimizer: str = "fused"
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    micro_batches: int = 1
    checkpointing: str = "none"
    max_grad_norm: float | None = None
    warmup_steps: int = 0
    total_steps: int | None = None
    final_learning_rate_share: float = 0.1
    loss_clamp: float | None = None
    balance_weight: float = 0.01
    router_z_weight: float = 0.001
    router_bias_rate: float = 0.001
    fused_loss: bool = False
    cudnn_benchmark: bool = False
    empty_cache: bool = False
    exchange: str = "none"
    bucket_mb: float = 25.0
    shard_optimizer: bool = False
    skip_non_finite: bool = True

    def __post_init__(self) -> None:
        _check_choice("precision", self.precision, PRECISIONS)
        _check_choice("compile", self.compile, COMPILE)
        _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        _check_choice("checkpointing", self.checkpointing, CHECKPOINTING)
        _check_choice("exchange", self.exchange, ("none", *EXCHANGES))
        _check_number("bucket_mb", self.bucket_mb, least=0.0)
        self._check_parallel()
        _check_whole("micro_batches", self.micro_batches, least=1)
        _check_whole("warmup_steps", self.warmup_steps, least=0)
        if self.total_steps is not None:
            _check_whole("total_steps", self.total_steps, least=1)
            if self.total_steps <= self.warmup_steps:
                raise ValueError(
                    f"total_steps={self.total_steps} with warmup_steps={self.warmup_steps} leaves no step for the "
                    f"cosine; give total_steps={self.warmup_steps + 1} or more, or a shorter warm-up"
                )
        _check_number("learning_rate", self.learning_rate, above=0.0)
        for name in ("weight_decay", "balance_weight", "router_z_weight", "router_bias_rate"):
            _check_number(name, getattr(self, name), least=0.0)
        _check_number("final_learning_rate_share", self.final_learning_rate_share, least=0.0, most=1.0)
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise TypeError(f"betas={self.betas!r}: wanted a tuple of two numbers, such as betas=(0.9, 0.999)")
        for index, beta in enumerate(self.betas):
            _check_number(f"betas[{index}]", beta, least=0.0, below=1.0)
        for name in ("max_grad_norm", "loss_clamp"):
            if getattr(self, name) is not None:
                _check_number(name, getattr(self, name), above=0.0, otherwise=", or None to switch it off")
        for name in ("fused_loss", "cudnn_benchmark", "empty_cache", "skip_non_finite", "shard_optimizer"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r}: wanted True or False")

    def _check_parallel(self) -> None:
        """Refuse combinations with an exchange that make no sense.

        Raises:
            ValueError: the combination, and what to leave out.
        """
        if self.shard_optimizer is True and self.exchange == "none":
            raise ValueError(
                "shard_optimizer=True shares out the work of processes that train together, and exchange='none' trains "
                "alone; give an exchange such as exchange='bucketed'"
            )
        if self.shard_optimizer is True and self.exchange in IN_PARTS:
            raise ValueError(
                f"shard_optimizer=True with exchange={self.exchange!r}, which divides the optimizer's state already; "
                "give shard_optimizer=False"
            )
        own_parts = self.exchange in ("zero3", "tensor")
        if self.shard_optimizer is True or own_parts:
            sharded = f"exchange={self.exchange!r}" if own_parts else "shard_optimizer=True"
            if PRECISIONS[self.precision].loss_scaling:
                raise ValueError(
                    f"{sharded} with precision={self.precision!r}: loss scaling looks at the gradients of a process's "
                    "own parameters alone; give precision='bf16'"
                )
        if own_parts and self.compile != "eager":
            raise ValueError(
                f"exchange={self.exchange!r} with compile={self.compile!r}: compiled code does not see what hooks do "
                "between modules; give exchange='fsdp2' or compile='eager'"
            )
        if self.exchange != "none" and self.compile in CUDA_GRAPH_MODES:
            raise ValueError(
                f"exchange={self.exchange!r} with compile={self.compile!r}: a CUDA graph replays a backward pass "
                "without the hooks that exchange gradients; give compile='default'"
            )


def _check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    choices = list(choices)
    if value not in choices:
        near = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"{name}={value!r}{hint}: wanted one of {', '.join(choices)}")


def _check_whole(name: str, value: object, *, least: int) -> None:
    # bool is an int to Python; True micro-batches are a mistake to a person.
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: wanted an integer, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}={value}: wanted {least} or more; give {name}={least} or more")


def _check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    otherwise: str = "",
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}: wanted a number{otherwise}, got {type(value).__name__}")
    if math.isfinite(value) and above < value < below and least <= value <= most:
        return
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("above", above), ("at least", least), ("at most", most), ("below", below))
        if math.isfinite(bound)
    ]
    raise ValueError(f"{name}={value!r}: wanted a finite number {' and '.join(bounds)}{otherwise}")
