"""Tables of the mixers and feed-forward layers of a block, by name.

B batch, T sequence, d model width.

    name     what a block does with its sequence, (B, T, d) -> (B, T, d), causal      `ModelConfig.mixer`
    name     what it does with each token by itself, (..., d) -> (..., d)             `ModelConfig.feed_forward`

"attention" reads keys and values of all tokens before, so it needs a cache that grows (`perflab.lab.inference.cache`),
and RoPE to see order. Any other mixer is an `nn.Module` that `Kind.target` makes of a `ModelConfig`, with a state of
fixed size (`StateMixer`):

    forward(x)                               from an empty state
    initial_state(batch_size, device, dtype) the empty state, a tuple of tensors (B, ...)
    advance(x, state)                        what `forward` gives behind what the state has seen, and the state after

    forward(x) == advance(x, initial_state(B, ...))[0]

A mixer of the reader's own joins the table by `register_mixer`. This module imports no mixer: names of classes are
looked up when a model is built.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from perflab.lab.models.config import ModelConfig

State = tuple[Tensor, ...]
"""A mixer's memory of the tokens before: tensors (B, ...) whose size does not depend on how many there were."""
FORMS = ("definition", "chunked", "triton")
"""The ways to compute a mixer: token by token as the equation says, by parallel chunks, by a Triton kernel."""


class StateMixer(Protocol):
    """The methods of a mixer with a state, called by models and caches; this module's docstring describes each."""

    def initial_state(self, batch_size: int, device: torch.device | str, dtype: torch.dtype) -> State:
        """The state before the first token."""

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T, d) behind what the state has seen -> (B, T, d) and the state after them."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to mix tokens.

    name        what `ModelConfig.mixer` calls it
    summary     one line for a table
    target      makes the module of a configuration: a class or function, or its dotted name "package.module:name"
    fields      fields of `ModelConfig` with a default that mean something to it; any other must keep its default
    takes_rope  whether queries and keys are turned by RoPE; a mixer that sees order by itself runs without
    forms       values of `ModelConfig.mixer_form` that it has
    """

    name: str
    summary: str
    target: str | Callable[[ModelConfig], nn.Module]
    fields: tuple[str, ...] = ()
    takes_rope: bool = False
    forms: tuple[str, ...] = FORMS

    @property
    def has_state(self) -> bool:
        """Whether it keeps a state of fixed size, and no keys."""
        return self.name != ATTENTION


ATTENTION = "attention"
ATTENTION_FIELDS = ("num_kv_heads", "window", "attention_dropout", "attention")
"""Fields of `ModelConfig` that are attention's unless another mixer says that they mean something to it."""

_KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name=ATTENTION,
            summary="softmax of queries and keys over all tokens before (Vaswani et al. 2017)",
            target="perflab.lab.models.transformer:MultiHeadAttention",
            fields=ATTENTION_FIELDS,
            takes_rope=True,
        ),
        Kind(
            name="retnet",
            summary="retention: linear attention with one fixed decay a head (Sun et al. 2023)",
            target="perflab.lab.recurrence.retnet:RetNet",
        ),
        Kind(
            name="gla",
            summary="gated linear attention: a decay for each key dimension, from the token (Yang et al. 2023)",
            target="perflab.lab.recurrence.gla:GatedLinearAttention",
        ),
        Kind(
            name="mamba2",
            summary="state-space duality: one decay a head, from the token (Dao & Gu 2024)",
            target="perflab.lab.recurrence.mamba2:Mamba2",
        ),
        Kind(
            name="rwkv6",
            summary="RWKV-6: decays from the token, and a bonus for the token itself (Peng et al. 2024)",
            target="perflab.lab.recurrence.rwkv6:RWKV6",
        ),
        Kind(
            name="mamba",
            summary="a selective scan: a state for each channel, whose step the token decides (Gu & Dao 2023)",
            target="perflab.lab.scan.mamba:Mamba",
        ),
        Kind(
            name="hyena",
            summary="long convolutions with implicit filters, and gates (Poli et al. 2023)",
            target="perflab.lab.hyena.hyena:Hyena",
        ),
    )
}
MIXERS: Mapping[str, Kind] = MappingProxyType(_KINDS)
"""Name to mixer, those of the reader's own included."""

FEED_FORWARDS: Mapping[str, str] = MappingProxyType(
    {
        "swiglu": "perflab.lab.models.transformer:SwiGLU",
        "gelu": "perflab.lab.models.transformer:GELU",
        "moe": "perflab.lab.experts.mixture:MixtureOfExperts",
    }
)
"""Name to what makes a feed-forward of a configuration: two or three matrices, or a mixture of experts."""


def register_mixer(
    name: str,
    target: str | Callable[[ModelConfig], nn.Module],
    *,
    summary: str = "",
    fields: tuple[str, ...] = (),
    forms: tuple[str, ...] = FORMS,
) -> Kind:
    """Add a mixer to the table, so that `ModelConfig(mixer=name)` and `--model=small,mixer=NAME` build models with it.

    Call it where it runs before the model is named: in the module that has the mixer, or in conftest.py. The same
    registration again changes nothing.

    Args:
        name: letters, digits, "-" and "_"; checkpoints keep it.
        target: what makes an `nn.Module` with the three methods of this module's docstring of a `ModelConfig`; a class,
            or its dotted name "package.module:name", which is imported when a model is built.
        summary: one line for a table.
        fields: fields of `ModelConfig` that mean something to it, out of those that are else attention's alone.
        forms: values of `mixer_form` that it has.

    Raises:
        ValueError: the name is none, or another mixer's; a form or field that is none.
        TypeError: the target is neither a dotted name nor callable.
    """
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"register_mixer({name!r}): wanted a name of letters, digits, '-' and '_', such as 'my-mixer'")
    if not callable(target) and not (isinstance(target, str) and ":" in target):
        raise TypeError(
            f"register_mixer({name!r}) got a target of type {type(target).__name__}: wanted a class, or its dotted "
            f"name 'package.module:name'"
        )
    for given, known in ((forms, FORMS), (fields, ATTENTION_FIELDS)):
        unknown = [one for one in given if one not in known]
        if unknown or (given is forms and not forms):
            raise ValueError(f"register_mixer({name!r}) got {given!r}: wanted some of {', '.join(known)}")
    kind = Kind(name=name, summary=summary, target=target, fields=fields, forms=forms)
    if _KINDS.setdefault(name, kind) != kind:
        raise ValueError(f"register_mixer({name!r}): another mixer has that name; choose another one")
    return kind


def kind_of(config: ModelConfig) -> Kind:
    """The mixer of a configuration, which has been checked."""
    return MIXERS[config.mixer]


def target_of(config: ModelConfig) -> Callable[[ModelConfig], nn.Module]:
    """Import and return the callable that makes the configuration's mixer. ImportError if the import fails."""
    return _found(kind_of(config).target, f"mixer={config.mixer!r}")


def make_mixer(config: ModelConfig) -> nn.Module:
    """A mixer of the configuration's kind.

    ImportError if the module that has it cannot be imported; TypeError if what it makes is no mixer.
    """
    kind = kind_of(config)
    made = target_of(config)(config)
    lacking = [name for name in ("initial_state", "advance") if not callable(getattr(made, name, None))]
    if kind.has_state and (lacking or not isinstance(made, nn.Module)):
        raise TypeError(
            f"mixer={kind.name!r}: {kind.target} made {type(made).__name__}; wanted an nn.Module with the methods "
            f"initial_state and advance, see perflab.lab.models.mixers"
        )
    return made


def empty_state(config: ModelConfig, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
    """The state before the first token, which depends on no weight: the mixer is built on `meta` for it."""
    with torch.device("meta"):
        mixer: Any = make_mixer(config)
    state: State = mixer.initial_state(batch_size, device, dtype)
    return state


def make_feed_forward(config: ModelConfig) -> nn.Module:
    """A feed-forward of the configuration's kind."""
    return _found(FEED_FORWARDS[config.feed_forward], f"feed_forward={config.feed_forward!r}")(config)


def check_mixer(config: ModelConfig, defaults: Mapping[str, object]) -> None:
    """Raise ValueError for an unknown mixer, a form that it lacks, or a field that means nothing to it.

    defaults: of the fields of `ModelConfig`.
    """
    if config.mixer not in MIXERS:
        near = difflib.get_close_matches(str(config.mixer).lower(), MIXERS, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(
            f"mixer={config.mixer!r}{hint}: wanted one of {', '.join(MIXERS)}, or one of your own, after register_mixer"
        )
    kind = MIXERS[config.mixer]
    if config.mixer_form not in kind.forms:
        raise ValueError(
            f"mixer_form={config.mixer_form!r} with mixer={kind.name!r}: wanted one of {', '.join(kind.forms)}"
        )
    for name in ATTENTION_FIELDS:
        value = getattr(config, name)
        if name not in kind.fields and value != defaults[name]:
            raise ValueError(
                f"{name}={value!r} means nothing to mixer={kind.name!r}; give {name}={defaults[name]!r}, or "
                f"mixer={ATTENTION!r}"
            )


def _found(target: str | Callable[[ModelConfig], nn.Module], asked: str) -> Callable[[ModelConfig], nn.Module]:
    if not isinstance(target, str):
        return target
    module_name, _, attribute = target.partition(":")
    try:
        found: Callable[[ModelConfig], nn.Module] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"{asked} is made by {target}, which cannot be imported: {error}") from error
    return found
