"""Activation checkpointing: what of a block is kept for backward, and what is computed again there.

    none         everything that autograd keeps
    every-block  the block's input; the block runs again, whole, when backward comes to it (Chen et al. 2016)
    selective    the input, the results of products with weights and of fused attention; all else runs again: norms,
                 rotation, activations, dropout, and whatever holds a number for each pair of tokens, which is most of
                 the memory and little of the work (Korthikanti et al. 2022, section 5)

Where part of a block is compiled by itself, such as its attention, selective keeps of that fused attention alone:
Inductor has products written into buffers that it uses again, so they run again.

The gradients are bitwise the same: what runs again runs on the same inputs and draws the same random numbers. A choice
of the training step: it changes neither the model's function nor its checkpoints on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

CHECKPOINTING = ("none", "every-block", "selective")
"""Levels of activation checkpointing."""

# By name, so that operators that nobody has loaded (Triton's) can be among them. Not bmm: batched products are those of
# attention written out, whose results are T x T.
KEPT = frozenset(
    (
        "aten::mm",
        "aten::addmm",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "perflab::flash_attention",
        "perflab::flash_attention_tma",
        "perflab::flash_attention_one_pass",
        "perflab::flash_attention_gluon",
    )
)
"""Operators whose results the selective policy keeps."""


def check_checkpointing(policy: str) -> str:
    """The policy itself; ValueError with the choices where there is none of that name."""
    if policy not in CHECKPOINTING:
        raise ValueError(f"checkpointing={policy!r}: wanted one of {', '.join(CHECKPOINTING)}")
    return policy


def run_block(block: torch.nn.Module, x: Tensor, *others: Any, checkpointing: str) -> Tensor:
    """`block(x, *others)`, keeping for backward what the policy says; all of it outside of training."""
    if checkpointing == "none" or not block.training or not torch.is_grad_enabled():
        out: Tensor = block(x, *others)
    elif checkpointing == "every-block":
        out = checkpoint(block, x, *others, use_reentrant=False)
    else:
        out = checkpoint(block, x, *others, use_reentrant=False, context_fn=_selective)
    return out


def _policy(context: Any, operator: Callable[..., Any], *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    """Whether a result is kept; asked at each operator."""
    kept = (
        isinstance(operator, OpOverload)  # FlexAttention is none
        and operator._schema.name in KEPT
        # `mm(..., out=buffer)`, as Inductor calls it. What the buffer holds, something else overwrites later; and left
        # out the second time, it would leave there what happened to be there.
        and not operator._schema.is_mutable
        and not _draws(operator, arguments, keywords)
    )
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _draws(operator: OpOverload, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether it draws random numbers: attention with dropout.

    Its result must not be kept: left out the second time, it would leave the generator where it was, and dropout that
    follows in the block would drop other numbers than in the forward.
    """
    for position, argument in enumerate(operator._schema.arguments):
        if argument.name == "dropout_p":
            given = arguments[position] if position < len(arguments) else keywords.get("dropout_p", 0.0)
            return bool(given)
    return False


_selective = functools.partial(create_selective_checkpoint_contexts, _policy)
