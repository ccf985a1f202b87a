"""What the attention cases are: grids of shapes, what a case costs, and what others measured on it.

Shapes: q, k, v (B, H, N, D). FLOPs: 4 B H N² D forward, half of it when causal; backward 2.5 times that
(FlashAttention-2, section 4.1).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab import Perf, settings_of
from perflab.attention.candidate import Candidate
from perflab.attention.chosen import attention_candidates
from perflab.lab.attention import IMPLEMENTATIONS, attention

from .setup import COMPILE_SECONDS

GRIDS = ("quick", "reference", "training", "all")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
BACKWARD_SHARE = 2.5
"""FLOPs of the backward over those of the forward: five matrix products where that has two."""
COMPILED = tuple(name for name, variant in IMPLEMENTATIONS.items() if variant.compiles)
LONGEST_TILED = 512
"""Tokens up to which its operators, which are quadratically many, are followed in a prediction."""
PUBLISHED = Path(__file__).with_name("published") / "h100_attention.csv"
Attention = Callable[..., Tensor]
"""Called as attention(q, k, v, is_causal=...)."""


@dataclass(frozen=True)
class Shape:
    """One attention problem; `id` is its part of a case's name."""

    batch_size: int
    num_heads: int
    seq_len: int
    head_dim: int
    precision: str
    is_causal: bool = True
    short_id: bool = False

    @property
    def id(self) -> str:
        """What makes it another problem, as short as tables need it: one head and causal go without saying.

        Ids of the CPU's grid are older, and name lengths alone: eight heads, fp32, causal.
        """
        size = f"{self.seq_len}-{self.head_dim}"
        if self.short_id:
            return size
        heads = "" if self.batch_size == self.num_heads == 1 else f"b{self.batch_size}h{self.num_heads}-"
        return f"{heads}{size}-{self.precision}{'' if self.is_causal else '-full'}"

    @property
    def dtype(self) -> torch.dtype:
        """The inputs' dtype."""
        return PRECISIONS[self.precision]

    @property
    def flops(self) -> float:
        """Of one forward pass."""
        return (0.5 if self.is_causal else 1.0) * 4 * self.batch_size * self.num_heads * self.seq_len**2 * self.head_dim

    def inputs(self, device: torch.device, *, requires_grad: bool) -> list[Tensor]:
        """Normal q, k and v, the same in every run."""
        generator = torch.Generator(device).manual_seed(0)
        size = (self.batch_size, self.num_heads, self.seq_len, self.head_dim)
        drawn = (torch.randn(size, generator=generator, device=device).to(self.dtype) for _ in range(3))
        return [tensor.requires_grad_(requires_grad) for tensor in drawn]


# --- which cases there are ---------------------------------------------------------------------------------------


def attention_variants(config: pytest.Config) -> dict[str, Candidate]:
    """What is measured, by name: the lab's variants that train and exist on the device, or what --attention names.

    Shapes are those of training: as many queries as keys.
    """
    found = attention_candidates(config, torch.device("cuda") if settings_of(config).predict else None)
    named = bool(config.getoption("--attention"))
    return {candidate.name: candidate for candidate in found if named or IMPLEMENTATIONS[candidate.name].trains}


def function_of(candidate: Candidate) -> Attention:
    """What is timed: a variant without its log-sum-exp, a callable of the user's as it is."""
    if candidate.known_variant:
        return partial(attention, impl=candidate.name)
    return partial(_output_of, candidate.call)


def _output_of(call: Callable[..., Any], *inputs: Tensor, **settings: Any) -> Tensor:
    returned = call(*inputs, **settings)
    return returned if isinstance(returned, Tensor) else returned[0]


def device_type(config: pytest.Config) -> str:
    """Where cases will be measured, or are predicted to run, before the device fixture tells."""
    if settings_of(config).predict:
        return "cuda"
    asked = config.getoption("perf_device") or config.getini("perf_device") or "auto"
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"


def grid(name: str, device_type: str) -> list[Shape]:
    """The shapes of `--attention-grid`."""
    if name == "reference":
        return [Shape(1, 1, *row) for row in published()]
    if name == "training":
        return _training(lengths=(1024, 2048, 4096, 8192, 16384, 32768), causal=(True, False))
    if name == "all":
        return [*grid("reference", device_type), *grid("training", device_type)]
    if device_type == "cuda":
        return _training(lengths=(1024, 4096, 16384), causal=(True,))
    return [Shape(1, 8, *size, "fp32", short_id=True) for size in ((256, 64), (1024, 64), (256, 128))]


def _training(lengths: tuple[int, ...], causal: tuple[bool, ...]) -> list[Shape]:
    return [
        Shape(4, 16, length, head_dim, "bf16", is_causal)
        for is_causal in causal
        for head_dim in (64, 128)
        for length in lengths
    ]


# --- what a case costs -------------------------------------------------------------------------------------------


def memory_bytes(impl: str, shape: Shape, device_type: str, *, backward: bool) -> float:
    """Peak memory of one call with its inputs; for variants that nobody knows, of the operands alone.

    What is quadratic was counted, tensor by tensor, and is held against exact peaks by
    tests/correctness/test_attention_needs.py.
    """
    heads = shape.batch_size * shape.num_heads
    operand = heads * shape.seq_len * shape.head_dim * shape.dtype.itemsize
    scores, wide = heads * shape.dtype.itemsize, heads * 4  # bytes for each pair of tokens, as held and in float32
    masked = 1 if shape.is_causal else 0
    per_pair = {
        # Scores before and after the scale, beside the mask; the backward has one more.
        "naive": (3 if backward else 2) * scores + masked,
        "compiled": 2 * wide + masked,
        "sdpa-math": (3 if backward else 2.75 if masked else 2.25) * wide,  # it computes in float32
        "flex": 0 if device_type == "cuda" else 3 * wide + 2,
    }.get(impl, 0)
    # Operands, output and their gradients; copies in float32; in tiled the accumulators and a row of tiles, too.
    copies = {
        "tiled": 16,
        "sdpa-math": 4,
        "flex": 4,
        "triton-one-pass": 1 if backward else 0,
        "triton-gluon": 1 if backward else 0,
    }.get(impl, 0)
    float32_copies = copies * operand * 4 / shape.dtype.itemsize
    return per_pair * shape.seq_len**2 + (8 if backward else 4) * operand + float32_copies


@contextmanager
def skipped_where_refused(candidate: Candidate) -> Iterator[None]:
    """What says by itself that it has no such thing is skipped, with its words."""
    try:
        yield
    except (NotImplementedError, *candidate.refusals) as refusal:
        pytest.skip(str(refusal))


def skip_unpredictable(perf: Perf, impl: str, seq_len: int) -> None:
    """Skip what would have to run, or would take minutes, where the case is predicted."""
    if perf.predicts and impl in COMPILED:
        pytest.skip("compiled when it is called, which has to run: it cannot be predicted")
    if perf.predicts and impl == "tiled" and seq_len > LONGEST_TILED:
        pytest.skip(f"a loop over tiles in Python: above {LONGEST_TILED} tokens predicting it takes long")


def declare(perf: Perf, candidate: Candidate, shape: Shape, *, backward: bool) -> None:
    """Say what the case needs and does, and what others measured on it; skip it where it cannot run."""
    claims = candidate.claims
    skip_unpredictable(perf, candidate.name, shape.seq_len)
    if claims.interpreted:
        pytest.skip("in Triton's interpreter, so its time means nothing")
    if shape.precision not in claims.dtypes:
        pytest.skip(f"does not take {shape.precision} on {perf.device.type}")
    if shape.is_causal and "causal" not in claims.features:
        pytest.skip("does not claim causal")
    if shape.head_dim > max(claims.head_dims):
        pytest.skip(f"takes head dimensions up to {max(claims.head_dims)}")
    if backward and not claims.gradients:
        pytest.skip(f"has no backward on {perf.device.type}")
    flops = shape.flops * (1 + BACKWARD_SHARE if backward else 1)
    needed = memory_bytes(candidate.name, shape, perf.device.type, backward=backward)
    compiling_s = COMPILE_SECONDS[perf.device.type] if candidate.name in COMPILED else 0.0
    perf.requires(flops=flops, memory_bytes=needed, precision=shape.dtype, setup_seconds=compiling_s)
    perf.work(flops=flops)
    if backward:
        perf.work(forward_flops=shape.flops, backward_flops=BACKWARD_SHARE * shape.flops)
    if (shape.batch_size, shape.num_heads, shape.is_causal) == (1, 1, True):
        _quote(perf, shape, backward=backward)


# --- what others measured ----------------------------------------------------------------------------------------


@cache
def published() -> dict[tuple[int, int, str], dict[str, float]]:
    """Seconds by column, by length, head dimension and precision; the keys are the reference grid."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return {
        (int(row.pop("seq_len")), int(row.pop("head_dim")), row.pop("precision")): {
            name.removesuffix("_ms"): float(value) / 1e3 for name, value in row.items()
        }
        for row in rows
    }


def _quote(perf: Perf, shape: Shape, *, backward: bool) -> None:
    found = published().get((shape.seq_len, shape.head_dim, shape.precision))
    for name in ("compiled", "triton") if found is not None else ():
        assert found is not None
        forward_s, backward_s, whole_s = (found[f"{name}_{part}"] for part in ("forward", "backward", "end_to_end"))
        if backward:
            perf.quote(f"H100 {name}", seconds=whole_s, forward=forward_s, backward=backward_s)
        else:
            perf.quote(f"H100 {name}", seconds=forward_s)
