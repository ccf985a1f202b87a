"""The configuration of a transformer: its dimensions and switches, checked once, and its number of parameters.

B batch, T sequence, V vocab_size, C context_length, d d_model, F d_ff, L num_layers, H num_heads, D = d / H head
dimension, K num_kv_heads.

    parameters = e V d + p C d + L (2 d^2 + 2 d K D + f d F + 2 g d) + g d

    e  tables over the vocabulary: 2, the embedding and the head; 1 with a tied head
    p  1 with learned positions, 0 with RoPE
    f  matrices of the feed-forward: 3 for SwiGLU, 2 for GELU; of E experts that share F, k a token and s for all:
       f d F becomes E d + 3 d F (E + s) / (k + s), with the router
    g  vectors of a norm: 1 for RMSNorm, its gain; 2 for LayerNorm, gain and bias

A block has four attention projections, those of keys and values K D wide; its feed-forward; and two norms. The last
g d is the final norm. No matrix has a bias.

A switch is either about *what* function the model is, and then belongs to its `architecture`, which a checkpoint keeps;
or about *how* it is computed (`attention`, `mixer_form`, `fused_norm`, `fused_feed_forward`), and then it does not.
With another mixer than attention its own weights stand in place of 2 d^2 + 2 d K D: `block.py` counts them.

Plain data: nothing here builds a tensor. Named configurations are in `sizes.py`, the model is in
`transformer.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Literal, get_args

from perflab.lab.attention import IMPLEMENTATIONS
from perflab.lab.attention.registry import DROPOUT, variants_with
from perflab.lab.experts.config import ExpertConfig
from perflab.lab.models.mixers import ATTENTION_FIELDS, FEED_FORWARDS, check_mixer, kind_of
from perflab.lab.models.rope_scaling import NO_SCALING, RopeScaling

Norm = Literal["rms", "layer"]
Positions = Literal["rope", "learned"]

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"norm": get_args(Norm), "positions": get_args(Positions), "feed_forward": tuple(FEED_FORWARDS)}
)
DROPOUTS = ("attention_dropout", "residual_dropout", "embedding_dropout")

NO_EXPERTS = ExpertConfig()
"""The value of `experts` where no mixture is asked for; with feed_forward="moe" it is a mixture like any other."""

WITHOUT_A_TENSOR = (
    *("rope_theta", *(f"rope_scaling.{field.name}" for field in fields(RopeScaling))),
    *("norm_eps", "window", *DROPOUTS, "experts.capacity_factor"),
)
"""Switches of the architecture that change the function, and no parameter's name or shape."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One `TransformerLM`; equal configurations are equal models up to their weights.

    Args:
        vocab_size: number of token ids, V.
        context_length: the longest sequence the model accepts; it sizes the tables of positions, nothing else.
        d_model: width of the residual stream.
        d_ff: width of the feed-forward's hidden layer.
        num_layers: number of blocks.
        num_heads: attention heads; `d_model / num_heads` must be whole, and even for RoPE, which turns pairs.
        num_kv_heads: heads of keys and values, each read by `num_heads / num_kv_heads` heads of queries (GQA;
            Ainslie et al. 2023); 1 is multi-query attention, `None` as many as `num_heads`.
        norm: ahead of each layer (pre-norm): "rms" (gain) or "layer" (gain and bias).
        norm_eps: added to the mean square, or variance, inside the norm's root.
        positions: "rope" turns queries and keys, and is nothing to a mixer without them; "learned" adds a table (C, d)
            to the embedding.
        rope_theta: base of the rotary frequencies (Su et al. 2021, section 3.3 uses 10,000).
        rope_scaling: how those are stretched, for contexts longer than the model was trained with.
        mixer: what mixes the tokens of a block: "attention", or another of `perflab.lab.models.mixers`.
        feed_forward: "swiglu", three matrices, "gelu", two, or "moe", a mixture of experts.
        experts: that mixture's; it means nothing to the others.
        tied_head: the head's weight is the embedding's.
        window: how many tokens one sees, itself included; `None`: all before it.
        attention_dropout, residual_dropout, embedding_dropout: probability, in training mode only, that a weight of
            attention, an output of a layer, a number of the embedded tokens is dropped.
        attention: how: the implementation that `perflab.lab.attention.attention` runs.
        mixer_form: how: another mixer than attention is computed: "definition", "chunked" or "triton".
        fused_norm, fused_feed_forward: how: by the Triton kernels `rms_norm` and `swiglu` of `perflab.lab.kernels`.

    Raises:
        ValueError: a value is out of range or two do not fit each other; names the value and a remedy.
        TypeError: a dimension is not an integer, a switch not True or False, a probability not a number.
    """

    vocab_size: int = 10_000
    context_length: int = 1024
    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None
    norm: Norm = "rms"
    norm_eps: float = 1e-5
    positions: Positions = "rope"
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling = NO_SCALING
    mixer: str = "attention"
    feed_forward: str = "swiglu"
    experts: ExpertConfig = NO_EXPERTS
    tied_head: bool = False
    window: int | None = None
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0
    attention: str = "sdpa"
    mixer_form: str = "chunked"
    fused_norm: bool = False
    fused_feed_forward: bool = False

    def __post_init__(self) -> None:
        check_mixer(self, _DEFAULTS)
        _check_numbers(self)
        _check_heads(self)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: wanted one of {', '.join(choices)}")
        _check_experts(self)
        _check_scaling(self)
        _check_how(self)

    @property
    def rotates(self) -> bool:
        """Whether queries and keys are turned by RoPE."""
        return self.positions == "rope" and kind_of(self).takes_rope

    @property
    def head_dim(self) -> int:
        """Width of one attention head, D."""
        return self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, K."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def kv_dim(self) -> int:
        """Width of all heads of keys, or of values, K D."""
        return self.kv_heads * self.head_dim


def architecture(config: ModelConfig) -> dict[str, int | float | str | bool | None]:
    """Return the settings that decide which function `TransformerLM(config)` is, up to its weights.

    The dimensions and the switches that have a meaning in this configuration: `context_length` where positions are a
    table of that length (RoPE goes on as far as one likes), `rope_theta` and "rope_scaling.kind" where there is RoPE,
    the other settings of scaling where it is scaled, attention's switches with attention, those of experts, as
    "experts.num_experts", where there are any. Never how it is computed.
    """
    kind = kind_of(config)
    names = [
        *("mixer", "vocab_size", "d_model", "d_ff", "num_layers", "num_heads", "norm", "norm_eps"),
        "positions",
        *(("context_length",) if config.positions == "learned" else ("rope_theta",) if config.rotates else ()),
        *("feed_forward", "tied_head", "window", *DROPOUTS),
    ]
    idle = [name for name in ATTENTION_FIELDS if name not in kind.fields]
    signature = {name: getattr(config, name) for name in names if name not in idle}
    if "num_kv_heads" not in idle:
        signature = {"num_kv_heads": config.kv_heads, **signature}
    if config.rotates:
        signature |= {f"rope_scaling.{name}": value for name, value in config.rope_scaling.architecture().items()}
    if config.feed_forward == "moe":
        signature |= {f"experts.{name}": value for name, value in config.experts.architecture().items()}
    return signature


def check_cache(filled: ModelConfig, config: ModelConfig) -> None:
    """Raise ValueError, naming what differs, if a cache for one model is given to another function's."""
    if filled is config:
        return
    ours, others = architecture(config), architecture(filled)
    differ = [f"{name}={others.get(name)!r} for {value!r}" for name, value in ours.items() if others.get(name) != value]
    if differ:
        raise ValueError(f"the cache is another model's: {', '.join(differ)}; make it with this model's config")


def feed_forward_matrices(config: ModelConfig) -> int:
    """Matrices d x F of one feed-forward, or of one expert, f."""
    return 2 if config.feed_forward == "gelu" else 3


def feed_forward_weights(config: ModelConfig) -> int:
    """Weights of one feed-forward: `f d F`; of experts `E d + 3 d F (E + s) / (k + s)`, the router's first."""
    if config.feed_forward != "moe":
        return feed_forward_matrices(config) * config.d_model * config.d_ff
    experts = config.experts
    of_experts = (experts.num_experts + experts.shared_experts) * experts.expert_width(config.d_ff)
    return config.d_model * (experts.num_experts + feed_forward_matrices(config) * of_experts)


def feed_forward_weights_per_token(config: ModelConfig) -> int:
    """Weights of one feed-forward that one token is multiplied with: `f d F`; of experts `E d + 3 d F`, whatever E."""
    router = config.experts.num_experts if config.feed_forward == "moe" else 0
    return config.d_model * (router + feed_forward_matrices(config) * config.d_ff)


def norm_vectors(config: ModelConfig) -> int:
    """Vectors (d,) of one norm, g."""
    return 1 if config.norm == "rms" else 2


def attention_parameter_count(config: ModelConfig) -> int:
    """Weights of one block's four projections: `2 d^2 + 2 d K D`."""
    return 2 * config.d_model**2 + 2 * config.d_model * config.kv_dim


def parameter_count(config: ModelConfig) -> int:
    """Trainable parameters of `TransformerLM(config)`, by this module's equation; another mixer's are counted."""
    tables = (1 if config.tied_head else 2) * config.vocab_size * config.d_model
    if config.positions == "learned":
        tables += config.context_length * config.d_model
    norm = norm_vectors(config) * config.d_model
    if kind_of(config).has_state:
        from perflab.lab.models.block import mixer_parameter_count  # builds the mixer, on meta

        mixer = mixer_parameter_count(config)
    else:
        mixer = attention_parameter_count(config)
    return tables + config.num_layers * (mixer + feed_forward_weights(config) + 2 * norm) + norm


def _check_numbers(config: ModelConfig) -> None:
    optional = [name for name in ("num_kv_heads", "window") if getattr(config, name) is not None]
    for name in ("vocab_size", "context_length", "d_model", "d_ff", "num_layers", "num_heads", *optional):
        value = getattr(config, name)
        # bool is an int to Python; True heads is a mistake to a person.
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r}: wanted an integer, got {type(value).__name__}")
        if value < 1:
            instead = ", or None" if name in optional else ""
            raise ValueError(f"{name}={value}: wanted a positive integer; give {name}=1 or more{instead}")
    for name in ("rope_theta", "norm_eps"):
        value = getattr(config, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r}: wanted a positive, finite number")
    for name in DROPOUTS:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name}={value!r}: wanted a probability, got {type(value).__name__}")
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value!r}: wanted a probability of at least 0 and below 1; 0 drops nothing")
    for name in ("tied_head", "fused_norm", "fused_feed_forward"):
        value = getattr(config, name)
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}: wanted True or False, got {type(value).__name__}")


def _check_heads(config: ModelConfig) -> None:
    d_model, num_heads = config.d_model, config.num_heads
    if d_model % num_heads:
        raise ValueError(
            f"d_model={d_model} does not divide into num_heads={num_heads}; give a multiple "
            f"such as d_model={_round_up(d_model, 2 * num_heads)}, or another num_heads"
        )
    if config.rotates and config.head_dim % 2:
        raise ValueError(
            f"d_model={d_model} with num_heads={num_heads} gives an odd head dimension "
            f"{config.head_dim}, and RoPE turns pairs; "
            f"give d_model={_round_up(d_model, 2 * num_heads)}, another num_heads, or positions='learned'"
        )
    if num_heads % config.kv_heads:
        divisors = ", ".join(str(heads) for heads in range(1, num_heads + 1) if num_heads % heads == 0)
        raise ValueError(
            f"num_heads={num_heads} do not divide among num_kv_heads={config.num_kv_heads}; give one of {divisors}"
        )


def _check_experts(config: ModelConfig) -> None:
    if not isinstance(config.experts, ExpertConfig):
        raise TypeError(f"experts={config.experts!r}: wanted an ExpertConfig, such as ExpertConfig(num_experts=8)")
    if config.feed_forward == "moe":
        config.experts.expert_width(config.d_ff)
    elif config.experts != NO_EXPERTS:
        raise ValueError(
            f"experts={config.experts!r} mean nothing to feed_forward={config.feed_forward!r}; give "
            f"feed_forward='moe', or no experts="
        )


def _check_scaling(config: ModelConfig) -> None:
    if not isinstance(config.rope_scaling, RopeScaling):
        raise TypeError(
            f"rope_scaling={config.rope_scaling!r}: wanted a RopeScaling, such as RopeScaling(kind='yarn', factor=4.0)"
        )
    if not config.rotates and config.rope_scaling != NO_SCALING:
        raise ValueError(
            f"rope_scaling={config.rope_scaling!r} means nothing where nothing is turned by RoPE "
            f"(mixer={config.mixer!r}, positions={config.positions!r}); give no rope_scaling="
        )
    if config.rope_scaling.kind == "ntk" and config.head_dim < 4:
        raise ValueError(
            f"rope_scaling.kind='ntk' with a head dimension of {config.head_dim}: wanted 4 or more; give fewer heads, "
            f"or rope_scaling.kind='linear'"
        )


def _check_how(config: ModelConfig) -> None:
    """Whether it can be computed the way that is asked for."""
    if config.attention not in IMPLEMENTATIONS:
        raise ValueError(f"attention={config.attention!r}: wanted one of {', '.join(IMPLEMENTATIONS)}")
    asked = {  # feature: the switch that asks for it
        "causal": None,
        "window": None if config.window is None else "window",
        "grouped-heads": None if config.kv_heads == config.num_heads else "num_kv_heads",
        DROPOUT: "attention_dropout" if config.attention_dropout else None,
    }
    needed = frozenset(feature for feature, switch in asked.items() if switch or feature == "causal")
    claims = IMPLEMENTATIONS[config.attention]
    if not claims.has(needed):
        blamed = [f for f in sorted(needed) if not claims.has(frozenset(("causal", f)))] or sorted(needed)
        switches = " and ".join(f"{name}={getattr(config, name)}" for f in blamed if (name := asked[f]))
        raise ValueError(
            f"attention={config.attention!r} has no {' and no '.join(blamed)}, which {switches} asks for; "
            f"give attention= one of {', '.join(variants_with(needed))}"
        )
    for switch, wants, kernel in (("fused_norm", "norm", "rms"), ("fused_feed_forward", "feed_forward", "swiglu")):
        if getattr(config, switch) and getattr(config, wants) != kernel:
            raise ValueError(
                f"{switch}=True with {wants}={getattr(config, wants)!r}: the lab's fused kernel is of {kernel!r}; "
                f"give {wants}={kernel!r}, or {switch}=False"
            )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


_DEFAULTS: Mapping[str, object] = MappingProxyType({field.name: field.default for field in fields(ModelConfig)})
