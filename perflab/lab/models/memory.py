"""Where the peak memory of a pass comes from: an estimate, by adding up the tensors that the model keeps.

B batch, T sequence, n = B T tokens, d d_model, F d_ff, H heads, K D width of keys and of values, V vocab_size. Item
sizes in bytes: p of a weight, a of what matrix products work in (2 under autocast, else p), w of what is kept wide (4
at least). With RMSNorm and SwiGLU

    attention      norm                        n d (2 w) + n w: input, normed value and root
                 + n d a                       the input of its products; 3 copies under autocast
                 + 2 n d a + 2 n K D a         q and the output, k and v
                 + variant                     what the variant keeps
    feed-forward   norm + n d a                the same, 2 copies under autocast
                 + 4 n F a                     gate, silu(gate), up and their product
    ending         norm + n d a                the final norm and the head's input
                 + n V w                       log-softmax of the loss

The switches change these terms:

    LayerNorm, and RMSNorm fused               norm = n d p + 2 n w, and n d p + 4 n: input and roots
    GELU; SwiGLU fused                         2 n F a, up and its gelu; 3 n F a, gate, up and the product
    variants that write the heads out          K D = d in attention: what they keep is repeated for every head
    dropout                                    what was drawn, in the dtype that it drops, as on a CPU (on CUDA a
                                               byte): n d a a layer, n d p of the embedding; written-out attention
                                               2 B H T^2 a, with the weights that are left
    checkpointing every block                  a block keeps its input, n d p, until it is computed again
    selective                                  and the results of its products with weights, and of fused attention

The peak lies at one of a few instants: the end of the forward, the start of the backward, the feed-forward or
the attention of the last block going back (all activations, few gradients), the same in the first block (few
activations, all gradients), the end, and the optimizer. From the last block to the first both terms are linear in the
layer, so no block in between can be the peak. With micro-batches all gradients are there throughout, and each new one
beside them until it is added.

An estimate: allocator rounding, fragmentation, library workspaces and the CUDA context are left out, and
`torch.compile` keeps less. `cost.py` says how close it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Literal

from perflab.lab.attention.tiled import TILE
from perflab.lab.models.config import (
    ModelConfig,
    attention_parameter_count,
    block_matmul_parameter_count,
    feed_forward_matrices,
    norm_vectors,
    parameter_count,
)

Mode = Literal["inference", "forward", "forward_backward", "train_step"]
Optimizer = Literal["fused", "foreach", "loop"]

WRITTEN_OUT = ("naive", "sdpa-math")
"""Variants that hold T x T weights in the dtype of their inputs."""
UNFUSED_DROPOUT = ("sdpa",)
"""Variants that do so for dropout, on a CPU at least."""


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """What lies in memory at one instant, in bytes.

    parameters       the weights
    buffers          the rotary tables, if there are any
    gradients        of the weights, as far as backward has come
    optimizer_state  AdamW's two moments of every weight
    weight_copies    weights cast by autocast, as far as they are still needed
    activations      what autograd keeps of the forward
    temporaries      what the operation at hand reads and writes besides
    """

    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    weight_copies: int = 0
    activations: int = 0
    temporaries: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def peak_memory(
    config: ModelConfig,
    *,
    batch_size: int,
    seq_len: int,
    mode: Mode,
    weight_bytes: int,
    autocast_bytes: int | None,
    checkpointing: str = "none",
    accumulates: bool = False,
    optimizer: Optimizer = "fused",
) -> MemoryParts:
    """The largest instant of one pass.

    Args:
        config, seq_len, mode, checkpointing, optimizer: as `model_cost` has them.
        batch_size: sequences that are in memory at a time: of a micro-batch.
        weight_bytes, autocast_bytes: item sizes of the weights and of autocast's dtype, if it is on.
        accumulates: gradients of a micro-batch before are there already.
    """
    if mode == "inference":  # nothing is dropped there
        config = replace(config, attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0)
    sizes = _Sizes(config, batch_size, seq_len, weight_bytes, autocast_bytes, checkpointing)
    if mode == "inference":
        instants = _inference(sizes)
    elif mode == "forward":
        instants = _forward(sizes)
    else:
        instants = _forward_backward(sizes, accumulates)
    parameters = weight_bytes * parameter_count(config)
    if mode == "train_step":
        instants = chain(instants, [_optimizer(sizes, parameters, optimizer)])
    peak = max(instants, key=lambda instant: instant.total)
    return replace(
        peak,
        parameters=parameters,
        # cos and sin: float32, half a head wide each
        buffers=4 * config.context_length * config.head_dim if config.positions == "rope" else 0,
        optimizer_state=2 * parameters if mode == "train_step" else 0,
    )


class _Sizes:
    """Bytes of each tensor that an instant is made of; the letters are the module's."""

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        seq_len: int,
        weight_bytes: int,
        autocast_bytes: int | None,
        checkpointing: str,
    ) -> None:
        n, d, d_ff = batch_size * seq_len, config.d_model, config.d_ff
        p, w = weight_bytes, max(weight_bytes, 4)
        a, casts = (p, False) if autocast_bytes is None else (autocast_bytes, True)
        self.num_layers = config.num_layers
        self.tied = config.tied_head

        self.stream = n * d * p
        self.hidden = n * d_ff * a
        self.logits = n * config.vocab_size * a
        self.wide_logits = n * config.vocab_size * w

        # What the attention variant keeps for backward, and has at hand besides, going forward and back.
        heads = batch_size * config.num_heads
        scores, tile = heads * seq_len**2, heads * min(seq_len, TILE) ** 2
        kv = 2 * n * config.kv_dim * a  # k and v
        dropout = 0
        if config.attention in WRITTEN_OUT or (config.attention in UNFUSED_DROPOUT and config.attention_dropout):
            kv = 2 * n * d * a
            variant, forward, backward = scores * a + seq_len**2, scores * a, 2 * scores * a  # the weights and the mask
            if config.attention_dropout:
                dropout = 2 * scores * a
        elif config.attention == "reference":  # keeps scores, weights and its inputs, all in float64
            kv = 2 * n * d * a
            variant, forward, backward = 16 * scores + 3 * n * d * (8 - a), 8 * scores, 24 * scores
        else:  # FlashAttention: keeps the log-sum-exp, sums dq wide
            variant, forward, backward = heads * seq_len * w, 0, n * d * w
        if config.attention in ("tiled", "triton", "triton-tma"):  # a few tiles of scores at a time, going back
            backward += 5 * tile * w
        if config.attention == "tiled":
            forward += 4 * tile * w

        if config.norm == "layer":
            norm = n * d * p + 2 * n * w
        elif config.fused_norm:
            norm = n * d * p + 4 * n
        else:
            norm = 2 * n * d * w + n * w
        residual_dropout = n * d * a if config.residual_dropout else 0
        qkv_and_out = 2 * n * d * a + kv
        self.attention = norm + n * d * a * (3 if casts else 1) + qkv_and_out + variant + dropout + residual_dropout
        self.attention_forward = forward
        self.attention_backward = n * d * a + kv + backward
        self.attention_inference = qkv_and_out + variant + forward

        gated = config.feed_forward == "swiglu"
        kept = 2 if not gated else 3 if config.fused_feed_forward else 4  # hidden layers
        self.feed_forward = norm + n * d * a * (1 + gated if casts else 1) + kept * self.hidden + residual_dropout
        self.feed_forward_backward = (2 if gated else 1) * self.hidden  # gradients, less what is done with
        self.feed_forward_inference = (3 if gated else 2) * self.hidden
        self.embedded = n * d * p if config.embedding_dropout else 0
        self.ending = norm + n * d * a

        # A block's share of what the forward keeps, and what computing it again adds to that when backward is there.
        block = self.attention + self.feed_forward
        self.recomputes = checkpointing != "none"
        self.kept_of_block = block
        if self.recomputes:
            self.kept_of_block = self.stream
        if checkpointing == "selective":
            products = 2 * n * d * a + 2 * n * config.kv_dim * a + n * d * a + (1 + gated) * self.hidden
            flash = n * d * a + variant if variant == heads * seq_len * w and config.attention != "tiled" else 0
            self.kept_of_block += products + flash

        # Gradients of the weights, and autocast's copies of them, layer by layer.
        self.table = config.vocab_size * d * p
        self.positions = config.context_length * d * p if config.positions == "learned" else 0
        self.attention_weights = attention_parameter_count(config) * p
        self.out_weight = d * d * p
        self.feed_forward_weight = d * d_ff * p
        self.feed_forward_weights = feed_forward_matrices(config) * self.feed_forward_weight
        self.norm_weights = norm_vectors(config) * d * p
        self.head_copy = config.vocab_size * d * a if casts else 0
        self.block_copy = block_matmul_parameter_count(config) * a if casts else 0


def _inference(sizes: _Sizes) -> Iterator[MemoryParts]:
    """No graph: one layer's tensors at a time, besides the stream and its normed copy."""
    copies = sizes.num_layers * sizes.block_copy
    at_hand = 2 * sizes.stream
    yield MemoryParts(weight_copies=copies, temporaries=at_hand + sizes.attention_inference)
    yield MemoryParts(weight_copies=copies, temporaries=at_hand + sizes.feed_forward_inference)
    yield MemoryParts(weight_copies=copies + sizes.head_copy, temporaries=at_hand + sizes.logits)


def _forward(sizes: _Sizes) -> Iterator[MemoryParts]:
    """The graph grows; the last block's attention can need more than the logits."""
    copies = sizes.num_layers * sizes.block_copy
    above = sizes.embedded + (sizes.num_layers - 1) * sizes.kept_of_block
    if sizes.recomputes:  # the last block runs as if there were no graph
        for at_hand in (sizes.attention_inference, sizes.feed_forward_inference):
            yield MemoryParts(weight_copies=copies, activations=above, temporaries=2 * sizes.stream + at_hand)
    else:
        yield MemoryParts(
            weight_copies=copies, activations=above + sizes.attention, temporaries=sizes.attention_forward
        )
    yield MemoryParts(
        weight_copies=copies + sizes.head_copy,
        activations=above + sizes.kept_of_block + sizes.ending,
        temporaries=sizes.logits,
    )


def _forward_backward(sizes: _Sizes, accumulates: bool) -> Iterator[MemoryParts]:
    """From the loss back to the embedding: activations go as gradients come."""
    block_gradients = sizes.attention_weights + sizes.feed_forward_weights + 2 * sizes.norm_weights
    ends = sizes.table + sizes.norm_weights + sizes.positions + (0 if sizes.tied else sizes.table)
    every_gradient = ends + sizes.num_layers * block_gradients

    def instant(*, done: int, new: int, activations: int, temporaries: int, copies: int) -> MemoryParts:
        """Gradients that are done, and one that is new."""
        if accumulates:  # each is there from before; the new one is beside it, and a tied head's waits for its table's
            waiting = sizes.table if sizes.tied and done else 0
            done, new, temporaries = every_gradient, 0, temporaries + new + waiting
        return MemoryParts(
            gradients=done + new,
            temporaries=temporaries,
            activations=sizes.embedded + activations,
            weight_copies=copies,
        )

    # A block that runs again casts its weights again; autocast's copies of the forward went with it.
    graph = sizes.num_layers * sizes.kept_of_block
    copies = 0 if sizes.recomputes else sizes.num_layers * sizes.block_copy
    yield instant(  # log-softmax going back: the gradients of its result and of its input
        done=0,
        new=0,
        activations=graph + sizes.ending + sizes.wide_logits,
        temporaries=2 * sizes.wide_logits,
        copies=copies + sizes.head_copy,
    )
    yield instant(  # the head: a gradient under autocast is there twice, as computed and as kept
        done=0,
        new=sizes.table,
        activations=graph + sizes.ending,
        temporaries=sizes.logits + sizes.head_copy,
        copies=copies + sizes.head_copy,
    )
    for layers_done in {0, sizes.num_layers - 1}:
        left = sizes.num_layers - layers_done - 1
        above = sizes.table + sizes.norm_weights + layers_done * block_gradients
        copies = sizes.block_copy if sizes.recomputes else (left + 1) * sizes.block_copy
        yield instant(  # the feed-forward going back: its inner gradients
            done=above,
            new=sizes.feed_forward_weight,
            activations=left * sizes.kept_of_block + sizes.attention + sizes.feed_forward,
            temporaries=sizes.feed_forward_backward + sizes.stream,
            copies=copies,
        )
        yield instant(  # attention going back
            done=above + sizes.feed_forward_weights + sizes.norm_weights,
            new=sizes.out_weight,
            activations=left * sizes.kept_of_block + sizes.attention,
            temporaries=sizes.attention_backward + sizes.stream,
            copies=copies,
        )
    # All gradients, the embedding's last; of a tied one the head's share is there already, and the two are added.
    done = every_gradient if sizes.tied else every_gradient - sizes.table
    yield instant(done=done, new=sizes.table, activations=0, temporaries=sizes.stream, copies=0)


def _optimizer(sizes: _Sizes, gradients: int, optimizer: Optimizer) -> MemoryParts:
    """AdamW: "foreach" makes the roots of all second moments at once, "loop" one tensor's after the other.

    Those twice, once divided, while the last tensor's are still there: of equal ones in a row, three.
    """
    loop = max(2 * sizes.table, 3 * sizes.feed_forward_weight, 3 * sizes.out_weight)
    if sizes.positions:
        loop = max(loop, sizes.table + 2 * sizes.positions)
    temporaries = {"fused": 0, "foreach": gradients, "loop": loop}[optimizer]
    return MemoryParts(gradients=gradients, temporaries=temporaries)
