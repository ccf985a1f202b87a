"""The cost of a pass through the model, before anything is built: operations in closed form, memory by tracing.

B batch, T sequence, n = B T tokens, d d_model, F d_ff, L num_layers, V vocab_size, H heads, K heads of keys and
values, D head dimension; f 3 for SwiGLU, 2 for GELU.

    forward   = 2 n (L (2 d^2 + 2 d K D + f d F) + V d)  +  L 4 B P d       floating-point operations
    backward  = 2 forward

Of a mixture of E experts f d F becomes E d + 3 d F, whatever E and k; of another mixer than attention, what a counter
sees in one pass of it on `meta` (`block.py`) stands in place of 2 n (2 d^2 + 2 d K D) + 4 B P d.

    P = T^2                         pairs of query and key in one sequence
    P = w T - w (w - 1) / 2         with a window of w <= T tokens: the band alone; w > T counts as T

A weight costs two operations a token, multiply and add, a tied head too; attention has two products, scores and
values, of 2 P d each sequence; backward has two products for each of forward's (Kaplan et al. 2020, section 2.1;
Chowdhery et al. 2022, appendix B). Without a window P is the whole T x T square although half of it is masked, as the
published utilisations and PyTorch's own counts have it; a window is there to leave out the rest, so with one the pairs
that are seen are counted, T (T + 1) / 2 at most. These are "model FLOPs": what a variant or activation checkpointing
computes again is not counted, nor what `naive` computes outside of the window, nor norms, softmax, dropout, the
optimizer and other sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch

from perflab.lab.attention.scoring import pairs_in_band
from perflab.lab.models.block import mixer_flops
from perflab.lab.models.config import (
    ModelConfig,
    attention_parameter_count,
    feed_forward_weights_per_token,
    parameter_count,
)
from perflab.lab.models.memory import MemoryParts, Mode, Optimizer, Pass, peak_memory
from perflab.lab.models.mixers import kind_of
from perflab.lab.models.recompute import check_checkpointing


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """The FLOPs and memory that one pass of a model needs.

    parameters  trainable parameters, exact
    flops       floating-point operations of the matrix products, exact for this module's formula
    memory      peak memory in bytes, by what it consists of
    """

    parameters: int
    flops: int
    memory: MemoryParts

    @property
    def memory_bytes(self) -> int:
        """Peak memory in bytes: everything alive at the worst instant, weights included."""
        return self.memory.total


def model_cost(
    config: ModelConfig,
    *,
    batch_size: int,
    seq_len: int,
    mode: Mode = "forward",
    param_dtype: torch.dtype = torch.float32,
    autocast_dtype: torch.dtype | None = None,
    checkpointing: str = "none",
    micro_batches: int = 1,
    optimizer: Optimizer = "fused",
) -> ModelCost:
    """Cost of one pass of `TransformerLM(config)` over tokens (batch_size, seq_len).

    The memory is that of eager execution, traced (`memory.py`). Beside the peak of every allocation that PyTorch's
    profiler saw on a CPU (`tiny`, B = 4, T = 256; switches of the architecture, variants of attention, bf16 autocast,
    checkpointing, micro-batches, optimizers; 2.13) it is within 0.2 % in every mode. Dropout is counted as on a CPU,
    which keeps more of it than CUDA does, and a fused variant of attention as `sdpa`.

    Args:
        config: the model; its `attention` decides what the pass keeps.
        batch_size, seq_len: B and T.
        mode: `inference` is a forward under `torch.no_grad()`; `forward` one that builds the graph, logits
            alive; `forward_backward` goes on through the loss to the gradients; `train_step` is a
            `perflab.lab.train.TrainingStep` beyond the first, AdamW's two moments in place.
        param_dtype: of the weights.
        autocast_dtype: of autocast, `None` without.
        checkpointing: out of `CHECKPOINTING`; of modes that build a graph.
        micro_batches: into how many the batch is cut, one after the other, their gradients added up.
        optimizer: how AdamW goes over the parameters in `train_step`: "fused", "foreach" or "loop".

    Raises:
        ValueError: unknown mode, checkpointing or optimizer, micro-batches that do not divide the batch,
            a size below 1, a sequence longer than the context, or autocast of weights that are not float32.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r}: wanted one of {', '.join(get_args(Mode))}")
    if batch_size < 1 or not 1 <= seq_len <= config.context_length:
        raise ValueError(
            f"batch_size={batch_size}, seq_len={seq_len}: wanted 1 or more of each, and no more than "
            f"context_length={config.context_length} tokens; give the configuration a longer context"
        )
    if autocast_dtype is not None and param_dtype != torch.float32:
        raise ValueError(
            f"autocast_dtype={autocast_dtype} with param_dtype={param_dtype}: autocast is estimated for "
            "torch.float32 weights only; give one of the two"
        )
    if micro_batches < 1 or batch_size % micro_batches:
        raise ValueError(
            f"batch_size={batch_size}, micro_batches={micro_batches}: wanted micro-batches of one size; give a number "
            f"that divides the batch"
        )
    if optimizer not in get_args(Optimizer):
        raise ValueError(f"optimizer={optimizer!r}: wanted one of {', '.join(get_args(Optimizer))}")
    flops = forward_flops(config, batch_size=batch_size, seq_len=seq_len)
    return ModelCost(
        parameters=parameter_count(config),
        flops=flops if mode in ("inference", "forward") else 3 * flops,
        memory=peak_memory(
            config,
            Pass(
                batch_size=batch_size // micro_batches,
                seq_len=seq_len,
                mode=mode,
                weight_dtype=param_dtype,
                autocast_dtype=autocast_dtype,
                checkpointing=check_checkpointing(checkpointing),
                accumulates=micro_batches > 1,
                optimizer=optimizer,
            ),
        ),
    )


def forward_flops(config: ModelConfig, *, batch_size: int, seq_len: int) -> int:
    """Operations of one forward pass (this module's equation); backward has twice as many."""
    weights = config.num_layers * feed_forward_weights_per_token(config) + config.vocab_size * config.d_model
    if kind_of(config).has_state:
        mixing = mixer_flops(config, seq_len)
    else:
        pairs = seq_len**2 if config.window is None else pairs_in_band(seq_len, seq_len, 1 - config.window, 0)
        mixing = 2 * seq_len * attention_parameter_count(config) + 4 * pairs * config.d_model
    return batch_size * (2 * seq_len * weights + config.num_layers * mixing)
