"""Changes of the lab's model that an explanation has to find: what each does, and what has to be named first."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perflab.lab.models import transformer
from perflab.lab.train.loss import cross_entropy_loss

_DRAWN = random.Random(0)
_NUMBER = torch.ones(1)
HERE = "tests/studies/profile_faults.py:"
MODEL, TRAINING = "perflab/lab/models/transformer.py:", "perflab/lab/train/"


@dataclass(frozen=True)
class Fault:
    """A change, and what an explanation has to name first: one of these operators, if any, in one of these modules."""

    name: str
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    place: str
    """How the file and function of its line begin: ``net.py:Net.forward``."""
    training: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    patched: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    again: bool = False
    """Whether all of the module is computed once more, which has to be said then, and of no other change."""
    is_added: bool = False
    """Whether all that runs in that place is new: the part has to have its time, and of nothing else."""
    also: tuple[tuple[str, str], ...] = ()
    """What else was changed, that any part has to say: an operator, and how the file and function of its line begin."""
    layers: tuple[int, ...] = ()
    """How many layers run before and now, where that is the change."""
    varies: bool = False
    """Whether the number of further calls differs from call to call: explained as of a case whose counts are worse."""


def around(owner: type[nn.Module], make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """A patch that replaces a module's forward by what ``make`` makes of it."""
    return lambda: patch.object(owner, "forward", make(owner.forward))


def input_changed(change: Callable[[Tensor], Tensor]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A forward that first does something to its input."""
    return lambda forward: lambda self, x, *rest: forward(self, change(x), *rest)


def output_changed(change: Callable[[Tensor], Tensor]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A forward that does something to its output."""
    return lambda forward: lambda self, *given: change(forward(self, *given))


def synchronised(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that reads a value of its output."""

    def run(self: nn.Module, *given: Any) -> Any:
        out = forward(self, *given)
        self.last_mean = out.detach().mean().item()
        return out

    return run


def checked_and_copied(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that looks through its input, and copies its output."""

    def run(self: Any, x: Tensor) -> Any:
        self.is_finite = x.isfinite().all().item()
        return forward(self, x).clone()

    return run


def written_out_silu(self: Any, x: Tensor) -> Tensor:
    """SwiGLU whose SiLU is written out."""
    gate = self.gate(x)
    out: Tensor = self.down(gate * torch.sigmoid(gate) * self.up(x))
    return out


def twice(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that is computed twice, and used once."""

    def run(self: nn.Module, *given: Any) -> Any:
        forward(self, *given)
        return forward(self, *given)

    return run


def chunked_norm(self: Any, x: Tensor) -> Tensor:
    """The norm, over four pieces of the batch one after another."""
    pieces = [part / part.square().mean(-1, keepdim=True).add(self.eps).sqrt() * self.gain for part in x.chunk(4)]
    return torch.cat(pieces)


def without_broadcast(self: Any, x: Tensor, _angles: None = None) -> Tensor:
    """RoPE whose tables are repeated for all heads first."""
    heads = x.shape[2]
    cos = self.cos[: x.shape[1], None].repeat(1, heads, 1)
    sin = self.sin[: x.shape[1], None].repeat(1, heads, 1)
    even, odd = x.view(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def in_another_module(self: Any, x: Tensor, rope: Any) -> Tensor:
    """A block that computes what its second norm did by itself."""
    x = x + self.attention(self.attention_norm(x), rope)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.feed_forward_norm.gain
    out: Tensor = x + self.feed_forward(normed)
    return out


def in_double(self: Any, x: Tensor) -> Tensor:
    """SwiGLU in float64."""
    gate, up, down = (one.weight.double() for one in (self.gate, self.up, self.down))
    wide = x.double()
    return F.linear(F.silu(F.linear(wide, gate)) * F.linear(wide, up), down).to(x.dtype)


def refused_if_nan(x: Tensor) -> Tensor:
    """The tensor, looked through for NaN."""
    if x.isnan().any():
        raise ValueError("NaN")
    return x


def beside(numbers: int) -> Callable[[Tensor], Tensor]:
    """One more product of elements, of so many numbers, in a module that has others."""
    factors = torch.ones(numbers)

    def run(x: Tensor) -> Tensor:
        torch.mul(factors, factors)
        return x

    return run


def now_and_then(x: Tensor) -> Tensor:
    """Thirteen small operators more, of two kinds: which of them there is one more of is drawn, and costs the same."""
    fewer = _DRAWN.choice((6, 7))
    for at in range(13):
        (torch.frac if at < fewer else torch.trunc)(_NUMBER)
    return x


def clamped(x: Tensor) -> Tensor:
    """Values that nothing exceeds, held to a range."""
    return x.clamp(-1e4, 1e4)


def head_by_rows(self: Any, tokens: Tensor) -> Tensor:
    """A model whose head runs for each sequence of the batch."""
    x = self.embedding(tokens)
    for block in self.blocks:
        x = block(x, self.rope)
    x = self.norm(x)
    return torch.stack([self.head(row) for row in x])


def _round_trip(x: Tensor) -> Tensor:
    return x.to(torch.float64).to(x.dtype)


def _layout(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1).contiguous()


def _slow_loss(logits: Tensor, tokens: Tensor, fused: bool = False) -> Tensor:
    flat = logits[:, :-1].flatten(0, 1).float()
    hot = F.one_hot(tokens[:, 1:].flatten(), flat.shape[-1]).to(flat.dtype)
    return -(torch.log_softmax(flat, dim=-1) * hot).sum() / flat.shape[0]


def with_entropy(logits: Tensor, tokens: Tensor, fused: bool = False) -> Tensor:
    """The loss, less some of the entropy of what the model says."""
    said = torch.softmax(logits.flatten(0, 1), dim=-1)
    loss: Tensor = cross_entropy_loss(logits, tokens, fused=fused) - 1e-3 * torch.special.entr(said).sum()
    return loss


ATTENTION, FEED_FORWARD = ("blocks.*.attention",), ("blocks.*.feed_forward",)
NORMS = ("blocks.*.attention_norm", "blocks.*.feed_forward_norm", "norm")
FAULTS = (
    Fault("an extra copy of attention's input", ("aten::clone", "aten::copy_"), ATTENTION,
          patched=around(transformer.MultiHeadAttention, input_changed(Tensor.clone)),
          place=HERE + "input_changed", is_added=True),
    Fault("a lost fusion: SiLU written out", ("aten::sigmoid", "aten::mul", "aten::sigmoid_backward", "aten::silu",
          "aten::silu_backward"), FEED_FORWARD,
          patched=lambda: patch.object(transformer.SwiGLU, "forward", written_out_silu),
          place=HERE + "written_out_silu"),
    Fault("a round trip through float64", ("aten::copy_", "aten::_to_copy", "aten::to"), FEED_FORWARD,
          patched=around(transformer.SwiGLU, input_changed(_round_trip)), place=HERE + "_round_trip", is_added=True),
    Fault(".item() in every block", ("aten::item", "aten::_local_scalar_dense", "aten::mean", "aten::sum"),
          ("blocks.*", *FEED_FORWARD), patched=around(transformer.SwiGLU, synchronised),
          place=HERE + "synchronised.run", is_added=True),
    Fault("attention written out", ("aten::bmm", "aten::_softmax", "aten::mul", "aten::masked_fill_", "aten::copy_",
          "aten::_softmax_backward_data", "aten::masked_fill", "aten::_scaled_dot_product_flash_attention_for_cpu",
          "aten::_scaled_dot_product_flash_attention_for_cpu_backward", "aten::matmul", "aten::softmax"), ATTENTION,
          changes={"attention": "naive"}, place="perflab/lab/attention/naive.py:"),
    Fault("every block recomputed", ("aten::scaled_dot_product_attention", "aten::linear", "aten::mul"), ("blocks.*",),
          training={"checkpointing": "every-block"}, again=True, place="perflab/lab/"),
    Fault("a loop over parameters in AdamW", ("aten::addcdiv_", "aten::lerp_", "aten::addcmul_", "aten::mul_",
          "aten::sqrt", "aten::add_", "aten::div", "aten::_fused_adamw_"), ("",), training={"optimizer": "loop"},
          place=TRAINING),
    Fault("AdamW by foreach instead of fused", ("aten::_foreach_addcdiv_", "aten::_foreach_lerp_",
          "aten::_foreach_addcmul_", "aten::_foreach_mul_", "aten::_foreach_sqrt", "aten::_foreach_add_",
          "aten::addcdiv_",
          "aten::_foreach_div_", "aten::sqrt", "aten::mul_", "aten::lerp_", "aten::addcmul_", "aten::_fused_adamw_",
          "aten::div_", "aten::add_"), ("",), training={"optimizer": "foreach"}, place=TRAINING),
    Fault("gradient clipping", ("aten::linalg_vector_norm", "aten::_foreach_norm", "aten::_foreach_mul_", "aten::mul_"),
          ("",), training={"max_grad_norm": 1.0}, place=TRAINING),
    Fault("the feed-forward computed twice", ("aten::linear", "aten::mm", "aten::silu", "aten::mul"),
          (*FEED_FORWARD, "blocks.*.feed_forward.gate", "blocks.*.feed_forward.up", "blocks.*.feed_forward.down"),
          patched=around(transformer.SwiGLU, twice), again=True, place=MODEL + "SwiGLU.forward"),
    Fault("norms over four pieces of the batch", ("aten::mul", "aten::div", "aten::square", "aten::pow", "aten::sum",
          "aten::mean", "aten::cat", "aten::copy_", "aten::neg", "aten::div_", "aten::sqrt", "aten::add",
          "aten::rsqrt"), NORMS,
          patched=lambda: patch.object(transformer.RMSNorm, "forward", chunked_norm), place=HERE + "chunked_norm"),
    Fault("RoPE's tables repeated for every head", ("aten::repeat", "aten::copy_", "aten::mul"), ("rope",),
          patched=lambda: patch.object(transformer.RotaryEmbedding, "forward", without_broadcast),
          place=HERE + "without_broadcast"),
    Fault("a norm moved into the block", ("aten::mul", "aten::square", "aten::pow", "aten::sum", "aten::rsqrt",
          "aten::mean"), ("blocks.*",), patched=lambda: patch.object(transformer.Block, "forward", in_another_module),
          place=HERE + "in_another_module"),
    Fault("the head called for each sequence", ("aten::linear", "aten::mm", "aten::addmm", "aten::stack", "aten::cat",
          "aten::copy_"), ("head", "TransformerLM"),  # that stacks as long as its head computes
          patched=lambda: patch.object(transformer.TransformerLM, "forward", head_by_rows),
          place=HERE + "head_by_rows"),
    Fault("dropout left on", ("aten::bernoulli_", "aten::native_dropout", "aten::mul", "aten::div_", "aten::dropout"),
          ("blocks.*",), changes={"residual_dropout": 0.1}, place=MODEL + "dropped"),
    Fault("a memory layout changed twice", ("aten::clone", "aten::copy_", "aten::contiguous"), ATTENTION,
          patched=around(transformer.MultiHeadAttention, output_changed(_layout)),
          place=HERE + "_layout", is_added=True),
    Fault("the loss by one-hot vectors", ("aten::scatter_", "aten::one_hot", "aten::mul", "aten::sum", "aten::copy_",
          "aten::zeros", "aten::fill_", "aten::log_softmax", "aten::_log_softmax", "aten::to"), ("",),
          patched=lambda: patch("perflab.lab.train.step.cross_entropy_loss", _slow_loss), place=HERE + "_slow_loss"),
    Fault("a NaN check after each block", ("aten::isnan", "aten::ne", "aten::any", "aten::item", "aten::eq"),
          ("blocks.*",), patched=around(transformer.Block, output_changed(refused_if_nan)),
          place=HERE + "refused_if_nan", is_added=True),
    Fault("a clamp of the logits", ("aten::clamp", "aten::clamp_backward", "aten::ge", "aten::where", "aten::le",
          "aten::logical_and_"), ("", "head", "TransformerLM"),
          patched=around(transformer.TransformerLM, output_changed(clamped)), place=HERE + "clamped", is_added=True),
    Fault("products in float64 in the feed-forward", ("aten::mm", "aten::linear", "aten::to", "aten::silu",
          "aten::copy_", "aten::_to_copy",
          "aten::mul", "aten::silu_backward"), (*FEED_FORWARD, "blocks.*.feed_forward.gate", "blocks.*.feed_forward.up",
          "blocks.*.feed_forward.down"),
          patched=lambda: patch.object(transformer.SwiGLU, "forward", in_double), place=HERE + "in_double"),
    Fault("a large operator beside small ones", ("aten::mul",), FEED_FORWARD,
          patched=around(transformer.SwiGLU, output_changed(beside(1 << 20))),
          place=HERE + "beside.run", is_added=True),
    Fault("a small operator beside large ones", ("aten::mul",), FEED_FORWARD,
          patched=around(transformer.SwiGLU, output_changed(beside(1))), place=HERE + "beside.run", is_added=True),
    Fault("a check and a copy on two lines of one module", ("aten::isfinite", "aten::clone"), FEED_FORWARD,
          patched=around(transformer.SwiGLU, checked_and_copied), place=HERE + "checked_and_copied.run",
          also=(("aten::item", HERE), ("aten::clone", HERE), ("aten::isfinite", HERE)), is_added=True),
    Fault("entropy in the loss, and gradient clipping", ("aten::softmax", "aten::special_entr", "aten::mul",
          "aten::add", "aten::sum", "aten::add_", "aten::_softmax", "aten::_softmax_backward_data"), ("",),
          training={"max_grad_norm": 1.0}, patched=lambda: patch("perflab.lab.train.step.cross_entropy_loss",
          with_entropy), place=HERE + "with_entropy", also=(("aten::_foreach_norm", TRAINING),)),
    Fault("a third layer", (), ("blocks.*",),
          changes={"num_layers": 3}, place="", layers=(2, 3)),
    Fault("operators whose number varies", ("aten::frac", "aten::trunc"), ("", "head", "TransformerLM"),
          patched=around(transformer.TransformerLM, output_changed(now_and_then)), place=HERE + "now_and_then",
          varies=True),
)  # fmt: skip
