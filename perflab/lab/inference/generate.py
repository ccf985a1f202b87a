"""Generate tokens: the prompts at once, then one token of each sequence at a time.

B sequences, T longest prompt, V vocabulary, N new tokens:

    logits = model(prompts, cache)              prefill: (B, T) -> (B, V) behind each prompt's last token
    N times: token = sample(logits)             (B,)
             logits = model(token, cache)       decode: one row of each sequence, the last time left out

A model is anything with `config.vocab_size` that can be called as `model(tokens, cache=cache, at=at)`: integer tokens
(B, T) to logits (B, T, V), or (B, 1, V) of the tokens `at` (B,) alone. It asks the cache for `positions` and, once a
layer, to `attend`, or where its mixer has a state instead of keys, to `advance` it (`state_cache.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.decoding import Decoding
from perflab.lab.inference.sampling import Sampling, sample
from perflab.lab.inference.slots import sent
from perflab.lab.inference.state_cache import StateCache
from perflab.lab.models.config import ModelConfig, check_cache
from perflab.lab.models.mixers import kind_of

Prompts = Sequence[Sequence[int]]
GREEDY = Sampling()


class LanguageModel(Protocol):
    """A model that can generate; `perflab.lab.models.TransformerLM` is one."""

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions, by which a cache is sized."""

    def __call__(self, tokens: Tensor, cache: KVCache | StateCache | None = None, at: Tensor | None = None) -> Tensor:
        """Tokens (B, T) -> logits (B, T, V), behind what the cache has; with `at` (B,), of one token each (B, 1, V)."""


def generate(
    model: LanguageModel,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    cache: KVCache | StateCache | None = None,
    sampling: Sampling = GREEDY,
    stop: Collection[int] = (),
    chunk: int | None = None,
    how: str = "eager",
) -> list[list[int]]:
    """Return the new tokens of each prompt: up to and with a stop token, or `max_new_tokens` of them.

    Arguments and errors are those of `stream`. Without stop tokens the host waits once, at the end.
    """
    made = list(
        stream(
            model, prompts, max_new_tokens=max_new_tokens, cache=cache, sampling=sampling, stop=stop, chunk=chunk,
            how=how,
        )
    )  # fmt: skip
    return [until_stop(row, stop) for row in torch.stack(made, dim=1).tolist()]


@torch.no_grad()
def stream(
    model: LanguageModel,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    cache: KVCache | StateCache | None = None,
    sampling: Sampling = GREEDY,
    stop: Collection[int] = (),
    chunk: int | None = None,
    how: str = "eager",
) -> Iterator[Tensor]:
    """Yield the tokens (B,) of each step, on the device. Tokens of sequences that have ended mean nothing.

    Leave the loop to cancel. Errors are raised by the first step, not by the call.

    Args:
        model: what is asked; its `config` sizes the cache.
        prompts: B lists of token ids, of any lengths.
        max_new_tokens: N.
        cache: empty, for B sequences; None: a contiguous one in the dtype of the model's parameters, of keys or, where
            the model's mixer has one, of its state.
        sampling: how tokens are chosen.
        stop: token ids that end a sequence. With any, the host waits for each token.
        chunk: prefill so many tokens at a time, so that a long prompt needs no more memory than that.
        how: "eager", "compiled" or "graph": how a decode step runs (`decoding.py`).

    Raises:
        ValueError: no prompt, an empty one, a token outside the vocabulary, more tokens than the context or the cache
            has room for, a cache of another batch or with tokens in it.
    """
    rows, counts = padded(prompts, model.config, max_new_tokens)
    cache = _cache_for(model, len(prompts), max(counts) + max_new_tokens) if cache is None else cache
    check_empty(cache, len(prompts))
    seeds = torch.arange(len(prompts), device=cache.device) + sampling.seed
    logits = prefill(model, sent(rows, cache.device), cache, counts, chunk)
    decode = Decoding(model, cache, how)
    alive = [True] * len(prompts)
    for left in reversed(range(max_new_tokens)):
        token = sample(logits, sampling, seeds, cache.lengths)
        yield token
        if stop:
            alive = [was and now not in stop for was, now in zip(alive, token.tolist(), strict=True)]
        if not left or not any(alive):
            return
        logits = decode(token, alive)


@torch.no_grad()
def prefill(
    model: LanguageModel, tokens: Tensor, cache: KVCache | StateCache, counts: Sequence[int], chunk: int | None = None
) -> Tensor:
    """Put prompts (B, T) into a cache, and return the logits (B, V) behind the last token of each sequence.

    `counts` states how many of the T tokens each sequence has; the others are padding.

    Raises:
        ValueError: a chunk of nothing, a cache of another model or of more tokens than its context, or a model in
            training mode, in which dropout would draw.
    """
    check_cache(cache.config, model.config)
    if cache.capacity > model.config.context_length:
        raise ValueError(
            f"a cache for {cache.capacity} tokens and a model for {model.config.context_length}: make it with "
            f"capacity={model.config.context_length} or less"
        )
    if getattr(model, "training", False):
        raise ValueError("the model is in training mode, in which dropout draws: call model.eval() first")
    cache.fixed = False  # a compiled step or a graph left it so
    length = tokens.shape[1]
    size = length if chunk is None else chunk
    if size < 1:
        raise ValueError(f"chunk={chunk}: wanted 1 token or more, or None for the whole prompt")
    out: Tensor | None = None
    for start in range(0, length, size):
        part = tokens[:, start : start + size]
        within = [min(max(count - start, 0), part.shape[1]) for count in counts]
        real = sent(within, tokens.device)
        cache.begin(part.shape[1], within)
        logits = model(part, cache=cache, at=(real - 1).clamp(min=0))[:, 0]
        cache.end()
        # Of a sequence whose prompt ended in an earlier chunk the logits are that chunk's.
        out = logits if out is None else torch.where(real[:, None] > 0, logits, out)
    assert out is not None
    return out


def until_stop(tokens: Sequence[int], stop: Collection[int]) -> list[int]:
    """Return the tokens up to and with the first stop token."""
    end = next((n for n, token in enumerate(tokens, 1) if token in stop), len(tokens))
    return list(tokens[:end])


def padded(prompts: Prompts, config: ModelConfig, max_new_tokens: int) -> tuple[list[list[int]], list[int]]:
    """Return prompts as B rows of T tokens, padded with 0 on the right, and the length of each.

    Raises:
        ValueError: there is no prompt, an empty one, a token outside the vocabulary, or too many tokens in all.
    """
    if not prompts:
        raise ValueError("generate() got no prompts: give a list of one or more lists of token ids")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens}: wanted 1 or more")
    for at, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {at} is empty: give it one token or more, such as the beginning-of-text token")
        outside = [token for token in prompt if not 0 <= token < config.vocab_size]
        if outside:
            raise ValueError(
                f"prompt {at} has token {outside[0]}, outside the vocabulary of {config.vocab_size}: encode it with "
                "this model's tokenizer"
            )
        if len(prompt) + max_new_tokens > config.context_length:
            raise ValueError(
                f"prompt {at} has {len(prompt)} tokens, and with {max_new_tokens} new ones exceeds "
                f"context_length={config.context_length}: shorten it, generate at most "
                f"{max(config.context_length - len(prompt), 0)}, or build the model with a longer context"
            )
    counts = [len(prompt) for prompt in prompts]
    rows = [[*prompt, *[0] * (max(counts) - len(prompt))] for prompt in prompts]
    return rows, counts


def _cache_for(model: LanguageModel, batch_size: int, capacity: int) -> KVCache | StateCache:
    kind = StateCache if kind_of(model.config).has_state else KVCache
    return kind(model.config, batch_size=batch_size, capacity=capacity, dtype=dtype_of(model), device=device_of(model))


def device_of(model: LanguageModel) -> torch.device:
    """The device of the model's first parameter; the CPU without any."""
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((p.device for p in parameters), torch.device("cpu"))


def dtype_of(model: LanguageModel) -> torch.dtype:
    """The dtype of the model's first floating-point parameter; float32 without any."""
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)


def check_empty(cache: KVCache | StateCache, batch_size: int) -> None:
    """Raise ValueError for a cache of another batch, or with tokens in it."""
    if cache.batch_size != batch_size:
        raise ValueError(
            f"a cache of {cache.batch_size} sequences for {batch_size} prompts: make it with batch_size={batch_size}"
        )
    if any(cache.counts):
        raise ValueError(
            f"the cache has {cache.counts} tokens already: cache.truncate([0] * {batch_size}) empties it, and "
            "`prefill` goes on behind them"
        )
