"""What low precision costs, in three small experiments; the cases are in test_precision.py, their words in
precision_findings.py.

Sums: 0.01, rounded to the addend's format, added a thousand times to a sum that is rounded to the accumulator's format.

Dtypes: which format each tensor of a model has under autocast.

Norms of x (R, D), R rows, D the width that is normalised over:

    LayerNorm(x) = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)
    RMSNorm(x)   = x / sqrt(mean(x^2) + eps)

each without a gain, on rows of unit deviation about an offset. The error is the largest difference from the same in
float64 on the same stored numbers, as a share of the largest output.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab.train import cross_entropy_loss

ADDEND, ADDITIONS = 0.01, 1000
NUM_ROWS = 64
EPS = 1e-5
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = {torch.float32: "fp32", **{dtype: name for name, dtype in FORMATS.items()}}
NORMS = ("LayerNorm", "RMSNorm")
HOWS = ("torch", "operations", "running-sum")
"""``torch``: one fused operation, float32 inside. ``operations``: PyTorch's operations one by one; each is float32
inside, and its result is rounded. ``running-sum``: sums too are kept in the format, one addend after another."""
STORED = "stored"
"""No norm in low precision at all: float64 on the rounded input, against float64 on the input before it was rounded."""


@dataclass(frozen=True)
class Pair:
    """What is added to what."""

    accumulator: torch.dtype
    addend: torch.dtype
    is_cast: bool = False
    """Whether the addend is cast to the accumulator's format before it is added."""

    def __str__(self) -> str:
        return f"{name_of(self.accumulator)}+={name_of(self.addend)}{'-cast' if self.is_cast else ''}"


EXACT_SUMS = {
    Pair(torch.float32, torch.float32): 10.000133514404297,
    Pair(torch.float16, torch.float16): 9.953125,
    Pair(torch.float32, torch.float16): 10.00213623046875,
    Pair(torch.float32, torch.float16, is_cast=True): 10.00213623046875,
    Pair(torch.bfloat16, torch.bfloat16): 4.0,
    Pair(torch.float32, torch.bfloat16): 10.009765625,
}
"""IEEE arithmetic leaves no choice: every machine must come to these. The first four are the published pairs."""


def name_of(dtype: torch.dtype) -> str:
    """``fp16`` of ``torch.float16``."""
    return _NAMES.get(dtype, str(dtype))


def stored_addend(pair: Pair) -> float:
    """0.01 as the addend's format has it."""
    return torch.tensor(ADDEND, dtype=pair.addend).item()


def accumulate(pair: Pair, device: torch.device) -> Tensor:
    """The sum, a scalar in the accumulator's format."""
    total = torch.zeros((), dtype=pair.accumulator, device=device)
    addend = torch.tensor(ADDEND, dtype=pair.addend, device=device)
    for _ in range(ADDITIONS):
        total += addend.to(pair.accumulator) if pair.is_cast else addend
    return total


def has_stalled(pair: Pair, total: Tensor) -> bool:
    """Whether one addend more would leave the sum as it is."""
    return torch.equal(total + torch.tensor(stored_addend(pair), dtype=pair.accumulator, device=total.device), total)


def published_sums() -> dict[Pair, str]:
    """What others got, as they wrote it."""
    with (Path(__file__).parents[1] / "published" / "accumulation.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        Pair(getattr(torch, row["accumulator"]), getattr(torch, addend), is_cast=cast == "cast to float32"): row[
            "result_after_1000_x_0.01"
        ]
        for row in rows
        for addend, _, cast in [row["addend"].partition(" ")]
    }


def dtype_flow(model: nn.Module, tokens: Tensor, autocast_dtype: torch.dtype) -> dict[str, str]:
    """The dtype of each tensor along a forward under autocast and its backward.

    ``norm`` is what the first norm gave in its place, after the embedding; ``low_norm`` what it gives of an input in
    low precision.
    """
    seen: dict[str, torch.dtype] = {}
    linear = next(module for module in model.modules() if isinstance(module, nn.Linear))
    norm = next(module for module in model.modules() if type(module).__name__.endswith("Norm"))

    def see(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, inputs, output: seen.__setitem__(name, output.dtype)

    hooks = [linear.register_forward_hook(see("first_linear")), norm.register_forward_hook(see("norm"))]
    with torch.autocast(tokens.device.type, dtype=autocast_dtype):
        logits = model(tokens)
    for hook in hooks:
        hook.remove()
    loss = cross_entropy_loss(logits, tokens)
    loss.backward()
    with torch.autocast(tokens.device.type, dtype=autocast_dtype), torch.no_grad():
        width = next(norm.parameters()).shape[-1]
        low = norm(torch.ones(1, width, dtype=autocast_dtype, device=tokens.device))
    parameters = list(model.parameters())
    return {
        "parameters": _names(parameter.dtype for parameter in parameters),
        "first_linear": name_of(seen["first_linear"]),
        "norm": name_of(seen["norm"]),
        "low_norm": name_of(low.dtype),
        "logits": name_of(logits.dtype),
        "loss": name_of(loss.dtype),
        "gradients": _names(parameter.grad.dtype for parameter in parameters if parameter.grad is not None),
    }


def rows_about(offset: float, width: int, device: torch.device) -> Tensor:
    """(R, D) float32 of unit deviation; the rows' means are spread evenly up to `offset`.

    One mean for all would do: a round number that the format happens to have makes its rounding look free.
    """
    deviations = torch.randn(NUM_ROWS, width, generator=torch.Generator().manual_seed(0))
    means = offset * torch.arange(1, NUM_ROWS + 1).view(-1, 1) / NUM_ROWS
    return (deviations + means).to(device)


def normalise(x: Tensor, norm: str, how: str) -> Tensor:
    """(R, D) -> (R, D), in the dtype of `x`; `how` is one of ``HOWS``."""
    width = x.shape[-1]
    if how == "torch":
        return F.layer_norm(x, (width,), eps=EPS) if norm == "LayerNorm" else F.rms_norm(x, (width,), eps=EPS)
    mean = _running_mean if how == "running-sum" else _mean
    centred = x - mean(x) if norm == "LayerNorm" else x
    return centred * torch.rsqrt(mean(centred * centred) + EPS)


def norm_error(norm: str, how: str, dtype: torch.dtype, *, offset: float, width: int, device: torch.device) -> float:
    """The error as a share of the largest output; infinite where the result is not finite."""
    given = rows_about(offset, width, device)
    stored = given.to(dtype)
    if how == STORED:
        wanted, got = _in_float64(given, norm), _in_float64(stored, norm)
    else:
        wanted, got = _in_float64(stored, norm), normalise(stored, norm, how).double()
    if not got.isfinite().all():
        return math.inf
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def _in_float64(x: Tensor, norm: str) -> Tensor:
    return normalise(x.double(), norm, "operations")


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _running_mean(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[:, 0])
    for column in x.T.contiguous():  # each addend of all rows beside each other
        total += column
    return (total / x.shape[-1]).unsqueeze(-1)


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return "/".join(sorted({name_of(dtype) for dtype in dtypes}))
