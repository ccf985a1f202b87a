"""How many bytes each tensor of a pass takes: the terms that `memory.py` adds up, each beside its equation.

B batch, T sequence, n = B T tokens, d d_model, F d_ff, H heads, K D width of keys and of values, V vocab_size, C
context_length. Item sizes in bytes: p of a weight, a of what matrix products work in (2 under autocast, else p), w of
what is kept wide (4 at least). What autograd keeps of the forward, with RMSNorm and SwiGLU:

    attention      norm                        n d (2 w) + n w: input, normed value and root
                 + n d a                       the input of its products; 3 copies under autocast
                 + 2 n d a + 2 n K D a         q and the output, k and v
                 + variant                     what the variant keeps, see `memory_attention.py`
    feed-forward   norm + n d a                the same, 2 copies under autocast
                 + 4 n F a                     gate, silu(gate), up and their product
    ending         norm + n d a                the final norm and the head's input
                 + n V w                       log-softmax of the loss

What the switches change stands with the term that they change.
"""

from __future__ import annotations

from dataclasses import dataclass

from perflab.lab.models.config import (
    ModelConfig,
    attention_parameter_count,
    block_matmul_parameter_count,
    feed_forward_matrices,
    norm_vectors,
)
from perflab.lab.models.memory_attention import VariantMemory, variant_memory


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes of each tensor that an instant is made of; the letters are the module's.

    Args:
        config, checkpointing: as `model_cost` has them.
        batch_size, seq_len: B and T, of a micro-batch.
        weight_bytes, autocast_bytes: p, and the item size of autocast's dtype if it is on.
    """

    config: ModelConfig
    batch_size: int
    seq_len: int
    weight_bytes: int
    autocast_bytes: int | None
    checkpointing: str

    @property
    def n(self) -> int:
        """Tokens: B T."""
        return self.batch_size * self.seq_len

    @property
    def a(self) -> int:
        """Item size of what matrix products work in."""
        return self.weight_bytes if self.autocast_bytes is None else self.autocast_bytes

    @property
    def w(self) -> int:
        """Item size of what is kept wide."""
        return max(self.weight_bytes, 4)

    @property
    def num_layers(self) -> int:
        """Blocks, L."""
        return self.config.num_layers

    @property
    def casts(self) -> bool:
        """Whether autocast makes copies."""
        return self.autocast_bytes is not None

    @property
    def gated(self) -> bool:
        """Whether the feed-forward is SwiGLU."""
        return self.config.feed_forward == "swiglu"

    @property
    def recomputes(self) -> bool:
        """Whether a block runs again for backward."""
        return self.checkpointing != "none"

    # Single tensors.

    @property
    def stream(self) -> int:
        """The residual stream, `n d p`."""
        return self.n * self.config.d_model * self.weight_bytes

    @property
    def layer(self) -> int:
        """A layer's input, output, queries: `n d a`."""
        return self.n * self.config.d_model * self.a

    @property
    def hidden(self) -> int:
        """A hidden layer of the feed-forward, `n F a`."""
        return self.n * self.config.d_ff * self.a

    @property
    def logits(self) -> int:
        """`n V a`."""
        return self.n * self.config.vocab_size * self.a

    @property
    def wide_logits(self) -> int:
        """`n V w`."""
        return self.n * self.config.vocab_size * self.w

    # What the forward keeps.

    @property
    def norm(self) -> int:
        """RMSNorm's input, normed value and root: `n d (2 w) + n w`; fused input and roots, `n d p + 4 n`.

        LayerNorm's input, means and roots: `n d p + 2 n w`.
        """
        if self.config.norm == "layer":
            return self.stream + 2 * self.n * self.w
        if self.config.fused_norm:
            return self.stream + 4 * self.n
        return 2 * self.n * self.config.d_model * self.w + self.n * self.w

    @property
    def variant(self) -> VariantMemory:
        """What the attention variant needs."""
        return variant_memory(self.config, batch_size=self.batch_size, seq_len=self.seq_len, a=self.a, w=self.w)

    @property
    def layer_dropout(self) -> int:
        """What was drawn for a layer's output, in the dtype that it drops as on a CPU (on CUDA a byte): `n d a`."""
        return self.layer if self.config.residual_dropout else 0

    @property
    def qkv_and_out(self) -> int:
        """q and the output, k and v: `2 n d a + 2 n K D a`, K D = d where the variant writes the heads out."""
        return 2 * self.layer + self.variant.kv

    @property
    def attention(self) -> int:
        """`norm + n d a + qkv_and_out + variant`, `n d a` thrice under autocast, and what dropout drew."""
        inputs = self.layer * (3 if self.casts else 1)
        variant = self.variant
        return self.norm + inputs + self.qkv_and_out + variant.kept + variant.drawn + self.layer_dropout

    @property
    def feed_forward(self) -> int:
        """`norm + n d a + 4 n F a`, and what dropout drew.

        `n d a` under autocast for each product that reads it: two of SwiGLU. GELU keeps up and its gelu, `2 n F a`;
        SwiGLU fused gate, up and the product, `3 n F a`.
        """
        inputs = self.layer * (2 if self.gated and self.casts else 1)
        hidden_layers = 2 if not self.gated else 3 if self.config.fused_feed_forward else 4
        return self.norm + inputs + hidden_layers * self.hidden + self.layer_dropout

    @property
    def embedded(self) -> int:
        """What dropout drew for the embedding, `n d p`."""
        return self.stream if self.config.embedding_dropout else 0

    @property
    def ending(self) -> int:
        """The final norm and the head's input, `norm + n d a`; the log-softmax is `wide_logits`."""
        return self.norm + self.layer

    @property
    def kept_of_block(self) -> int:
        """Until backward comes to it: all of it; checkpointed its input, `n d p`; selective also `selected`."""
        if not self.recomputes:
            return self.attention + self.feed_forward
        return self.stream + (self.selected if self.checkpointing == "selective" else 0)

    @property
    def selected(self) -> int:
        """Results of products with weights, `3 n d a + 2 n K D a + 2 n F a` (GELU: `n F a`), and of fused attention."""
        products = 3 * self.layer + 2 * self.n * self.config.kv_dim * self.a + (1 + self.gated) * self.hidden
        return products + (self.layer + self.variant.kept if self.variant.is_operator else 0)

    # What is at hand besides.

    @property
    def attention_backward(self) -> int:
        """Gradients of the output, k and v, and what the variant needs going back."""
        return self.layer + self.variant.kv + self.variant.backward

    @property
    def attention_inference(self) -> int:
        """Attention when nothing is kept."""
        return self.qkv_and_out + self.variant.kept + self.variant.forward

    @property
    def feed_forward_backward(self) -> int:
        """Gradients of the hidden layers, less what is done with: `2 n F a`; GELU `n F a`."""
        return (2 if self.gated else 1) * self.hidden

    @property
    def feed_forward_inference(self) -> int:
        """The feed-forward when nothing is kept: `3 n F a`; GELU `2 n F a`."""
        return (3 if self.gated else 2) * self.hidden

    # Weights, whose gradients are as large, and autocast's copies of them.

    @property
    def table(self) -> int:
        """The embedding, or the head: `V d p`."""
        return self.config.vocab_size * self.config.d_model * self.weight_bytes

    @property
    def positions(self) -> int:
        """Learned positions, `C d p`."""
        learned = self.config.positions == "learned"
        return self.config.context_length * self.config.d_model * self.weight_bytes if learned else 0

    @property
    def attention_weights(self) -> int:
        """The four projections of a block."""
        return attention_parameter_count(self.config) * self.weight_bytes

    @property
    def out_weight(self) -> int:
        """One projection, attention's last: `d^2 p`."""
        return self.config.d_model**2 * self.weight_bytes

    @property
    def feed_forward_weight(self) -> int:
        """One matrix of the feed-forward, `d F p`."""
        return self.config.d_model * self.config.d_ff * self.weight_bytes

    @property
    def feed_forward_weights(self) -> int:
        """All of a block's."""
        return feed_forward_matrices(self.config) * self.feed_forward_weight

    @property
    def norm_weights(self) -> int:
        """Of one norm: `d p`, of LayerNorm `2 d p`."""
        return norm_vectors(self.config) * self.config.d_model * self.weight_bytes

    @property
    def head_copy(self) -> int:
        """The head cast by autocast, `V d a`."""
        return self.config.vocab_size * self.config.d_model * self.a if self.casts else 0

    @property
    def block_copy(self) -> int:
        """A block's matrices cast by autocast."""
        return block_matmul_parameter_count(self.config) * self.a if self.casts else 0
