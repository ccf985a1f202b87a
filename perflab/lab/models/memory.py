"""Where the peak memory of a pass comes from: an estimate, by adding up the tensors that the model keeps.

Which tensors these are, and how many bytes each takes, is in `memory_terms.py`; here is which are there at a time.

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

from perflab.lab.models.config import ModelConfig, parameter_count
from perflab.lab.models.memory_terms import Sizes

Mode = Literal["inference", "forward", "forward_backward", "train_step"]
Optimizer = Literal["fused", "foreach", "loop"]


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
    sizes = Sizes(
        config=config,
        batch_size=batch_size,
        seq_len=seq_len,
        weight_bytes=weight_bytes,
        autocast_bytes=autocast_bytes,
        checkpointing=checkpointing,
    )
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


def _inference(sizes: Sizes) -> Iterator[MemoryParts]:
    """No graph: one layer's tensors at a time, besides the stream and its normed copy."""
    copies = sizes.num_layers * sizes.block_copy
    at_hand = 2 * sizes.stream
    yield MemoryParts(weight_copies=copies, temporaries=at_hand + sizes.attention_inference)
    yield MemoryParts(weight_copies=copies, temporaries=at_hand + sizes.feed_forward_inference)
    yield MemoryParts(weight_copies=copies + sizes.head_copy, temporaries=at_hand + sizes.logits)


def _forward(sizes: Sizes) -> Iterator[MemoryParts]:
    """The graph grows; the last block's attention can need more than the logits."""
    copies = sizes.num_layers * sizes.block_copy
    above = sizes.embedded + (sizes.num_layers - 1) * sizes.kept_of_block
    if sizes.recomputes:  # the last block runs as if there were no graph
        for at_hand in (sizes.attention_inference, sizes.feed_forward_inference):
            yield MemoryParts(weight_copies=copies, activations=above, temporaries=2 * sizes.stream + at_hand)
    else:
        yield MemoryParts(weight_copies=copies, activations=above + sizes.attention, temporaries=sizes.variant.forward)
    yield MemoryParts(
        weight_copies=copies + sizes.head_copy,
        activations=above + sizes.kept_of_block + sizes.ending,
        temporaries=sizes.logits,
    )


def _forward_backward(sizes: Sizes, accumulates: bool) -> Iterator[MemoryParts]:
    """From the loss back to the embedding: activations go as gradients come."""
    tied = sizes.config.tied_head
    block_gradients = sizes.attention_weights + sizes.feed_forward_weights + 2 * sizes.norm_weights
    ends = sizes.table + sizes.norm_weights + sizes.positions + (0 if tied else sizes.table)
    every_gradient = ends + sizes.num_layers * block_gradients

    def instant(*, done: int, new: int, activations: int, temporaries: int, copies: int) -> MemoryParts:
        """Gradients that are done, and one that is new."""
        if accumulates:  # each is there from before; the new one is beside it, and a tied head's waits for its table's
            waiting = sizes.table if tied and done else 0
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
    done = every_gradient if tied else every_gradient - sizes.table
    yield instant(done=done, new=sizes.table, activations=0, temporaries=sizes.stream, copies=0)


def _optimizer(sizes: Sizes, gradients: int, optimizer: Optimizer) -> MemoryParts:
    """AdamW: "foreach" makes the roots of all second moments at once, "loop" one tensor's after the other.

    Those twice, once divided, while the last tensor's are still there: of equal ones in a row, three.
    """
    loop = max(2 * sizes.table, 3 * sizes.feed_forward_weight, 3 * sizes.out_weight)
    if sizes.positions:
        loop = max(loop, sizes.table + 2 * sizes.positions)
    temporaries = {"fused": 0, "foreach": gradients, "loop": loop}[optimizer]
    return MemoryParts(gradients=gradients, temporaries=temporaries)
