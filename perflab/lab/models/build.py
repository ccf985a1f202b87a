"""From a name to a model: a size of ours, or `package.module:factory` for a model of the reader's own.

A factory is any callable, a class too, that returns an `nn.Module` mapping integer tokens (B, T) to logits
(B, T, V). It is called with those of `vocab_size=` and `context_length=` that its signature accepts.

A size's name may carry settings, each behind a plus: "small+mixer=mamba", "tiny+feed_forward=moe+d_ff=512".
So one text names the model to a run's cases, its files and its baselines.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

import torch
from torch import nn

from perflab.lab.models.config import ModelConfig
from perflab.lab.models.sizes import MODEL_SIZES
from perflab.lab.models.transformer import TransformerLM


def build_model(
    name: str,
    *,
    vocab_size: int = 10_000,
    context_length: int = 1024,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **overrides: Any,
) -> nn.Module:
    """Build the model called `name`, freshly drawn: `torch.manual_seed` before the call decides its weights.

    Args:
        name: one of `MODEL_SIZES`, with settings or without, or `package.module:factory`.
        vocab_size: number of token ids, V.
        context_length: longest sequence, in tokens.
        device: where it is built; `None` is the ambient device, `"meta"` gives shapes and no memory.
        dtype: of the weights, which are drawn in torch's default dtype and then cast, so that one seed gives
            one model in every dtype; `None` leaves them.
        **overrides: other `ModelConfig` fields for a size (`attention="naive"`), or further keyword arguments
            for a factory, which must accept them.

    Raises:
        ValueError: no such size, module attribute or configuration value.
        ImportError: the module before the colon cannot be imported.
        TypeError: an override or a factory's signature or result does not fit.
    """
    if ":" in name:
        wanted: dict[str, Any] = {"vocab_size": vocab_size, "context_length": context_length}
        model = _call_factory(name, wanted, overrides, device)
    else:
        config = size_config(name, vocab_size=vocab_size, context_length=context_length, **overrides)
        with _on(device):
            model = TransformerLM(config)
    return model.to(device=device, dtype=dtype)


def size_config(name: str, **overrides: Any) -> ModelConfig:
    """The configuration of a named size with some fields changed, those of its name first; builds nothing.

    Raises:
        ValueError: no such size, or a value that `ModelConfig` refuses.
        TypeError: an override, or a setting in the name, is no field of `ModelConfig`.
    """
    size, settings = split_name(name)
    if size not in MODEL_SIZES:
        by_lower = {size.lower(): size for size in MODEL_SIZES}
        near = difflib.get_close_matches(size.lower(), by_lower, n=1, cutoff=0.5)
        hint = f" (did you mean {by_lower[near[0]]!r}?)" if near else ""
        raise ValueError(
            f"unknown model {size!r}{hint}: wanted one of {', '.join(MODEL_SIZES)}, "
            "or package.module:factory for a model of your own"
        )
    config = MODEL_SIZES[size]
    known = [field.name for field in fields(ModelConfig)]
    for key in overrides:
        if key not in known:
            raise TypeError(f"model {size!r} has no setting {key!r}; its settings are {', '.join(known)}")
    changes: dict[str, Any] = {}
    within: dict[str, dict[str, Any]] = defaultdict(dict)  # of experts, changed together: one may need another
    for path, text in settings.items():
        field, _, inner = path.partition(".")
        held = getattr(config, field, None)
        if is_dataclass(held) and inner in [one.name for one in fields(held)]:
            within[field][inner] = _read(path, text, type(held), inner)
        elif not inner and field in known and not is_dataclass(held):
            changes[field] = _read(path, text, ModelConfig, field)
        else:
            raise TypeError(f"model {name!r}: {path!r} is no setting; {_settings_known()}")
    changes |= {field: replace(getattr(config, field), **inner) for field, inner in within.items()}
    return replace(config, **{**changes, **overrides})


def split_name(name: str) -> tuple[str, dict[str, str]]:
    """A model's name without its settings, and these: "small+window=64" -> "small", {"window": "64"}."""
    size, *settings = re.split(r"\+(?=[A-Za-z_][\w.]*=)", name)
    return size, {field: value for field, _, value in (setting.partition("=") for setting in settings)}


def is_size(name: str) -> bool:
    """Whether the name is one of `MODEL_SIZES`, with settings or without: a model whose switches and cost are known."""
    return split_name(name)[0] in MODEL_SIZES


def _read(path: str, text: str, owner: type, field: str) -> int | float | bool | str | None:
    """The value that a text means for a field of a configuration. ValueError if it means none."""
    kind = get_type_hints(owner)[field]
    # A union has its members; a Literal its values, all of them texts.
    members = get_args(kind) or (kind,)
    if NoneType in members and text.lower() == "none":
        return None
    if bool in members and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        if number in members:
            try:
                return number(text)
            except ValueError:
                continue
    if str in members or all(isinstance(member, str) for member in members):
        return text
    words = {NoneType: "none", bool: "true or false", int: "a whole number", float: "a number"}
    raise ValueError(f"{path}={text}: wanted {' or '.join(words[member] for member in members)}")


def _settings_known() -> str:
    own = [
        f"{f.name}.{inner.name}" for f in fields(ModelConfig) if is_dataclass(f.default) for inner in fields(f.default)
    ]
    plain = [field.name for field in fields(ModelConfig) if not is_dataclass(field.default)]
    return f"wanted one of {', '.join([*plain, *own])}"


def _call_factory(
    name: str, wanted: Mapping[str, Any], overrides: Mapping[str, Any], device: torch.device | str | None
) -> nn.Module:
    factory = _find_factory(name)
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some callables written in C have none
        remedy = "its signature cannot be read; wrap it in a Python function"
        raise TypeError(f"model {name!r}: {remedy}") from None
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    arguments = {key: value for key, value in wanted.items() if takes_any or key in signature.parameters}
    arguments.update(overrides)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise TypeError(
            f"model {name!r}: cannot be called as {_spell_call(name, arguments)}: {error}. Its signature is "
            f"{signature}; give its other parameters defaults, and pass only settings that it accepts"
        ) from None
    # On meta nothing may be built at all. Elsewhere the result is moved: an ambient device would trip a factory
    # that mixes in tensors or generators of its own.
    on_meta = device is not None and torch.device(device).type == "meta"
    with _on("meta" if on_meta else None):
        model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model {name!r}: {_spell_call(name, arguments)} returned {type(model).__name__}; wanted a "
            "torch.nn.Module that maps integer tokens (batch, sequence) to logits (batch, sequence, vocab_size)"
        )
    return model


def _find_factory(name: str) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"model {name!r}: wanted package.module:factory, a name on each side of the colon")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever it raises while it loads, the user must hear which module it was
        raise ImportError(
            f"model {name!r}: importing {module_name!r} failed with {type(error).__name__}: {error}. "
            "Run from the folder that holds it, or install its package"
        ) from error
    factory = module
    for part in attribute.split("."):
        if not hasattr(factory, part):
            near = difflib.get_close_matches(part, vars(factory) if hasattr(factory, "__dict__") else [])
            hint = f"; near names there: {', '.join(near)}" if near else ""
            raise ValueError(f"model {name!r}: {module_name!r} has no attribute {attribute!r}{hint}")
        factory = getattr(factory, part)
    if not callable(factory):
        raise TypeError(
            f"model {name!r}: {attribute!r} is of type {type(factory).__name__}; wanted a callable that returns a model"
        )
    return factory


def _on(device: torch.device | str | None) -> AbstractContextManager[Any]:
    return nullcontext() if device is None else torch.device(device)


def _spell_call(name: str, arguments: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{name.partition(':')[2]}({listed})"
