"""What an inference case runs on: a model, its cache, its prompts; and what that costs, before anything is built.

Shapes: prompts B lists of T tokens; logits (B, V).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perflab import Perf
from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.cost import DecodeCost, cache_bytes, decode_cost, weight_bytes
from perflab.lab.inference.decoding import Decoding
from perflab.lab.inference.generate import prefill
from perflab.lab.inference.paged_cache import PagedCache
from perflab.lab.inference.quantised import quantise
from perflab.lab.inference.state_cache import StateCache
from perflab.lab.inference.weight_layout import lay_out_for_decode
from perflab.lab.inference.window_cache import WindowCache
from perflab.lab.models import MIXERS, ModelConfig, TransformerLM, build_model, is_size, size_config
from perflab.lab.models.cost import forward_flops

VOCAB_SIZE = 10_000
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CACHES = {"contiguous": KVCache, "paged": PagedCache, "window": WindowCache}


@dataclass(frozen=True)
class Serving:
    """One model, one batch, one way to answer.

    context    tokens of each sequence behind the call: a decode step adds the last of them
    precision  of weights and activations
    cache      "contiguous", "paged" or "window"
    cache_bits 8: keys and values in int8
    bits       8 or 4: weights are quantised; None: they are not
    kernel     what reads the cache, out of `KERNELS`
    how        a decode step's way: "eager", "compiled" or "graph"
    laid_out   weights lie as `lay_out_for_decode` stores them
    changes    fields of `ModelConfig` that differ from the named size's
    """

    model_name: str
    batch_size: int
    context: int
    device: torch.device
    precision: str = "fp32"
    cache: str = "contiguous"
    cache_bits: int | None = None
    bits: int | None = None
    kernel: str = "sdpa"
    how: str = "eager"
    laid_out: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return DTYPES[self.precision]

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of keys and values in the cache."""
        return torch.int8 if self.cache_bits == 8 else self.dtype

    @cached_property
    def config(self) -> ModelConfig:
        """The configuration of the model; with a window, its attention is one that has windows."""
        windowed = {"attention": "tiled"} if self.changes.get("window") is not None else {}
        changes = {**windowed, **self.changes}
        return size_config(self.model_name, vocab_size=VOCAB_SIZE, context_length=self.context, **changes)

    @property
    def group_size(self) -> int:
        """Weights with one scale, of 4 bits."""
        return 128 if self.config.d_model % 128 == 0 else 64

    @property
    def is_ours(self) -> bool:
        """Whether the model is one of the lab's, which alone the lab can ask to generate."""
        return is_size(self.model_name)

    def resized(self, *, batch_size: int, context_length: int, **switches: Any) -> Serving:
        """The same at other sizes, with other switches."""
        changes = {**self.changes, **switches.pop("changes", {})}
        return replace(self, batch_size=batch_size, context=context_length, changes=changes, **switches)

    @property
    def remedies(self) -> dict[str, dict[str, Any]]:
        """What makes the case smaller, by name: switches that it does not have on already."""
        known: dict[str, dict[str, Any]] = {
            "bf16": {"precision": "bf16"},
            "int8 cache": {"cache_bits": 8},
            "int8 weights": {"bits": 8},
            "int4 weights": {"bits": 4},
            "grouped heads, 8 a group": {"changes": {"num_kv_heads": max(1, self.config.num_heads // 8)}},
        }
        if self.has_state:
            del known["int8 cache"]
        if self.has_state or self.config.num_kv_heads is not None or self.config.num_heads % 8:
            del known["grouped heads, 8 a group"]
        return {
            name: what
            for name, what in known.items()
            if any(getattr(self, key) != value for key, value in what.items())
        }

    @property
    def has_state(self) -> bool:
        """Whether the model keeps a state in place of keys and values."""
        return self.is_ours and MIXERS[size_config(self.model_name).mixer].has_state

    def skip_what_a_state_has_not(self) -> None:
        """Skip a case about keys and values where the model keeps a state: there is nothing to page, split or round."""
        of_keys = {"cache": "contiguous", "cache_bits": None, "kernel": "sdpa"}
        asked = [name for name, usual in of_keys.items() if getattr(self, name) != usual]
        if self.has_state and (asked or self.changes):
            named = ", ".join([*asked, *self.changes])
            pytest.skip(f"{named}: of keys and values, and {self.model_name} keeps a state")

    def step_cost(self) -> DecodeCost:
        """What one decode step moves and computes."""
        return decode_cost(
            self.config, batch_size=self.batch_size, context=self.context, dtype=self.dtype,
            cache_dtype=self.cache_dtype, bits=self.bits, group_size=self.group_size,
        )  # fmt: skip

    def declare(self, perf: Perf, *, flops: float, more_bytes: int = 0, calls: float = 1) -> None:
        """Skip the case if it does not fit, before anything is built."""
        if not self.is_ours:
            pytest.skip(f"{self.model_name} is no model of the lab's: measure its generate with perf.generation()")
        weights = weight_bytes(self.config, self.dtype, bits=self.bits, group_size=self.group_size)
        if self.bits is not None:
            weights += weight_bytes(self.config, self.dtype)  # while it is quantised
        cached = cache_bytes(self.config, self.cache_dtype, batch_size=self.batch_size, tokens=self.context)
        perf.requires(memory_bytes=weights + cached + more_bytes, flops=calls * flops, precision=self.dtype)

    def prefill_flops(self) -> int:
        """Operations of all prompts' forward; of the head, one row each."""
        head = 2 * self.batch_size * (self.context - 1) * self.config.vocab_size * self.config.d_model
        return forward_flops(self.config, batch_size=self.batch_size, seq_len=self.context) - head

    def model(self) -> TransformerLM:
        """The model, from a fixed seed, without training mode."""
        torch.manual_seed(0)
        model: nn.Module = build_model(
            self.model_name, vocab_size=VOCAB_SIZE, context_length=self.context, device=self.device,
            **{**({"attention": "tiled"} if self.changes.get("window") is not None else {}), **self.changes},
        )  # fmt: skip
        assert isinstance(model, TransformerLM)
        model = model.to(self.dtype).eval().requires_grad_(False)
        if self.bits is not None:
            product = "triton" if self.device.type == "cuda" else "torch"
            return quantise(model, bits=self.bits, group_size=self.group_size, product=product)
        return lay_out_for_decode(model) if self.laid_out else model

    def new_cache(self) -> KVCache | StateCache:
        """An empty cache for the batch."""
        if self.has_state:
            return StateCache(self.config, batch_size=self.batch_size, dtype=self.cache_dtype, device=self.device)
        kind = CACHES[self.cache]
        return kind(
            self.config, batch_size=self.batch_size, dtype=self.cache_dtype, device=self.device,
            **({} if self.cache == "window" else {"kernel": self.kernel}),
        )  # fmt: skip

    def prompts(self, length: int) -> list[list[int]]:
        """Random tokens of that length for each sequence, on the host."""
        tokens = torch.randint(VOCAB_SIZE, (self.batch_size, length), generator=torch.manual_seed(1), device="cpu")
        rows: list[list[int]] = tokens.tolist()
        return rows


class DecodeStep:
    """One decode step behind `context - 1` tokens. A call puts the cache back first, which is one launch of its own.

    `filled`: with keys and values of a prompt; a prediction wants no values, and its prompt would take the longest.
    """

    def __init__(self, serving: Serving, *, filled: bool = True) -> None:
        self.model, self.cache = serving.model(), serving.new_cache()
        self._held = serving.context - 1
        if filled:
            tokens = torch.zeros(serving.batch_size, self._held, dtype=torch.int64, device=serving.device)
            with torch.no_grad():
                prefill(self.model, tokens, self.cache, [self._held] * serving.batch_size, 1024)
        else:
            self.cache.begin(self._held)
            self.cache.end()
        self.decode = Decoding(self.model, self.cache, serving.how)
        self.token = torch.zeros(serving.batch_size, dtype=torch.int64, device=serving.device)

    def __call__(self) -> Tensor:
        """Logits (B, V) behind one token more, after the one of the call before is forgotten.

        A state cannot forget, and moves on: a step's work is the same behind any tokens.
        """
        held = [self._held] * self.cache.batch_size
        if isinstance(self.cache, StateCache):
            self.cache.recount(held)
        else:
            self.cache.truncate(held)
        return self.decode(self.token)


@cache
def copied_bytes_per_s(device: torch.device) -> float:
    """Bytes read and written per second by the fastest of ten copies that no cache can hold."""
    source = torch.zeros(256 * 2**20 if device.type == "cuda" else 128 * 2**20, dtype=torch.uint8, device=device)
    target, fastest = torch.empty_like(source), float("inf")
    for _ in range(10):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * source.numel() / fastest
