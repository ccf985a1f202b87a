"""Where the peak memory of a pass comes from: an estimate, by adding up the tensors that the model keeps.

B batch, T sequence, n = B T tokens, d d_model, F d_ff, H heads, V vocab_size. Item sizes in bytes: p of a
weight, a of what matrix products work in (2 under autocast, else p), w of what is kept wide (4 at least).

    attention      n d (2 w) + n w         its norm: input, normed value and root
                 + n d a                   the input of its products; 3 copies under autocast
                 + 4 n d a + variant       q, k, v, the output, and what the variant keeps
    feed-forward   n d (2 w) + n w + n d a the same, 2 copies under autocast
                 + 4 n F a                 gate, silu(gate), up and their product
    ending         n d (2 w) + n w + n d a the final norm and the head's input
                 + n V w                   log-softmax of the loss

The peak lies at one of a few instants: the end of the forward, the start of the backward, the feed-forward or
the attention of the last block going back (all activations, few gradients), the same in the first block (few
activations, all gradients), and the end. From the last block to the first both terms are linear in the layer,
so no block in between can be the peak.

An estimate: allocator rounding, fragmentation, library workspaces and the CUDA context are left out, and
`torch.compile` keeps less. `cost.py` says how close it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal

from perflab.lab.attention.tiled import TILE
from perflab.lab.models.config import ModelConfig, block_matmul_parameter_count, parameter_count

Mode = Literal["inference", "forward", "forward_backward", "train_step"]


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """What lies in memory at one instant, in bytes.

    parameters       the weights
    buffers          the rotary tables
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
) -> MemoryParts:
    """The largest instant of one pass; `autocast_bytes` is the item size of autocast's dtype, if it is on."""
    sizes = _Sizes(config, batch_size, seq_len, weight_bytes, autocast_bytes)
    if mode == "inference":
        instants = _inference(sizes)
    elif mode == "forward":
        instants = _forward(sizes)
    else:
        instants = _forward_backward(sizes)
    peak = max(instants, key=lambda instant: instant.total)
    parameters = weight_bytes * parameter_count(config)
    return replace(
        peak,
        parameters=parameters,
        buffers=4 * config.context_length * config.head_dim,  # cos and sin: float32, half a head wide each
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
    ) -> None:
        n, d, d_ff = batch_size * seq_len, config.d_model, config.d_ff
        p, w = weight_bytes, max(weight_bytes, 4)
        a, casts = (p, False) if autocast_bytes is None else (autocast_bytes, True)
        self.num_layers = config.num_layers

        self.stream = n * d * p
        self.hidden = n * d_ff * a
        self.logits = n * config.vocab_size * a
        self.wide_logits = n * config.vocab_size * w

        # What the attention variant keeps for backward, and has at hand besides, going forward and back.
        heads = batch_size * config.num_heads
        scores, tile = heads * seq_len**2, heads * min(seq_len, TILE) ** 2
        if config.attention == "naive":  # keeps the weights and the mask
            variant, forward, backward = scores * a + seq_len**2, scores * a, 2 * scores * a
        elif config.attention == "reference":  # keeps scores, weights and its inputs, all in float64
            variant, forward, backward = 16 * scores + 3 * n * d * (8 - a), 8 * scores, 24 * scores
        else:  # FlashAttention: keeps the log-sum-exp, sums dq wide
            variant, forward, backward = heads * seq_len * w, 0, n * d * w
        if config.attention in ("tiled", "triton"):  # their backward holds a few tiles of scores at a time
            backward += 5 * tile * w
        if config.attention == "tiled":
            forward += 4 * tile * w

        norm = 2 * n * d * w + n * w
        qkv_and_out = 4 * n * d * a
        self.attention = norm + n * d * a * (3 if casts else 1) + qkv_and_out + variant
        self.attention_forward = forward
        self.attention_backward = 3 * n * d * a + backward
        self.attention_inference = qkv_and_out + variant + forward
        self.feed_forward = norm + n * d * a * (2 if casts else 1) + 4 * self.hidden
        self.block = self.attention + self.feed_forward
        self.ending = norm + n * d * a

        # Gradients of the weights, and autocast's copies of them, layer by layer.
        self.table = config.vocab_size * d * p
        self.attention_weights = 4 * d * d * p
        self.feed_forward_weights = 3 * d * d_ff * p
        self.gains = d * p
        self.head_copy = config.vocab_size * d * a if casts else 0
        self.block_copy = block_matmul_parameter_count(config) * a if casts else 0


def _inference(sizes: _Sizes) -> Iterator[MemoryParts]:
    """No graph: one layer's tensors at a time, besides the stream and its normed copy."""
    copies = sizes.num_layers * sizes.block_copy
    at_hand = 2 * sizes.stream
    yield MemoryParts(weight_copies=copies, temporaries=at_hand + sizes.attention_inference)
    yield MemoryParts(weight_copies=copies, temporaries=at_hand + 3 * sizes.hidden)
    yield MemoryParts(weight_copies=copies + sizes.head_copy, temporaries=at_hand + sizes.logits)


def _forward(sizes: _Sizes) -> Iterator[MemoryParts]:
    """The graph grows; the last block's attention can need more than the logits."""
    copies = sizes.num_layers * sizes.block_copy
    yield MemoryParts(
        weight_copies=copies,
        activations=(sizes.num_layers - 1) * sizes.block + sizes.attention,
        temporaries=sizes.attention_forward,
    )
    yield MemoryParts(
        weight_copies=copies + sizes.head_copy,
        activations=sizes.num_layers * sizes.block + sizes.ending,
        temporaries=sizes.logits,
    )


def _forward_backward(sizes: _Sizes) -> Iterator[MemoryParts]:
    """From the loss back to the embedding: activations go as gradients come."""
    graph, copies = sizes.num_layers * sizes.block, sizes.num_layers * sizes.block_copy
    yield MemoryParts(  # log-softmax going back: the gradients of its result and of its input
        weight_copies=copies + sizes.head_copy,
        activations=graph + sizes.ending + sizes.wide_logits,
        temporaries=2 * sizes.wide_logits,
    )
    gradients = sizes.table
    yield MemoryParts(  # the head: a gradient under autocast is there twice, as computed and as kept
        weight_copies=copies + sizes.head_copy,
        activations=graph + sizes.ending,
        gradients=gradients,
        temporaries=sizes.logits + sizes.head_copy,
    )
    gradients += sizes.gains
    block_gradients = sizes.attention_weights + sizes.feed_forward_weights + 2 * sizes.gains
    for layers_done in {0, sizes.num_layers - 1}:
        left = sizes.num_layers - layers_done - 1
        above = gradients + layers_done * block_gradients
        yield MemoryParts(  # SwiGLU's product going back: its gradient and those of both factors
            weight_copies=(left + 1) * sizes.block_copy,
            activations=left * sizes.block + sizes.attention + sizes.feed_forward,
            gradients=above + sizes.feed_forward_weights // 3,
            temporaries=2 * sizes.hidden + sizes.stream,
        )
        yield MemoryParts(  # attention going back
            weight_copies=(left + 1) * sizes.block_copy,
            activations=left * sizes.block + sizes.attention,
            gradients=above + sizes.feed_forward_weights + sizes.gains + sizes.attention_weights // 4,
            temporaries=sizes.attention_backward + sizes.stream,
        )
    yield MemoryParts(  # all gradients, the embedding's last
        gradients=gradients + sizes.num_layers * block_gradients + sizes.table, temporaries=sizes.stream
    )
