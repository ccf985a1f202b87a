"""The selective scan as a suite sees it: its cases, what is plain, the size of the terms, and the comparison.

Shapes: x, dt, z, y (B, T, E); a (E, N); b, c (B, T, N); d (E,); state, final (B, E, N); starts (B, T).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from perflab.correctness import Report, expanded_ones, random_upstream, verify
from perflab.correctness.covering import cover
from perflab.lab.attention.inputs import accumulation_dtype
from perflab.lab.scan.definition import reference_selective_scan

Scan = Callable[..., tuple[Tensor, Tensor]]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DECAYS = {"mixed": (1.0, 1.0), "weak": (1e-4, 0.1), "strong": (30.0, 1.0), "none": (0.0, 1.0)}
"""Factors of a and dt: a state that is lost in a step has decayed by exp(-30), one that is kept by exp(-1e-5)."""
GRADIENTS = {"": ("y",), "gboth": ("y", "final"), "gfinal": ("final",)}


@dataclass(frozen=True)
class ScanCase:
    """One case: a level of each factor."""

    length: int = 33
    dtype: str = "fp32"
    decay: str = "mixed"
    steps: str = "wide"
    gate: str = "none"
    skip: bool = True
    state: bool = False
    starts: str = "none"
    layout: str = ""
    shape: tuple[int, int, int] = (2, 5, 16)
    upstream: str = ""
    gradients: str = ""

    def __str__(self) -> str:
        batch, channels, states = self.shape
        parts = (f"t{self.length}", f"b{batch}e{channels}n{states}", self.dtype, self.decay, f"dt{self.steps}")
        flags = ("d" if self.skip else "", f"z{self.gate}", "h" if self.state else "", f"s{self.starts}")
        return "-".join(part for part in (*parts, *flags, self.layout, self.upstream, self.gradients) if part)

    def make_inputs(self, device: torch.device) -> Callable[[int], Mapping[str, Tensor]]:
        """make_inputs(seed) -> the tensors that are given, by name."""
        batch, channels, states = self.shape
        dtype = DTYPES[self.dtype]
        wide = torch.float32 if self.steps == "wide" else dtype
        of_a, of_dt = DECAYS[self.decay]

        def make(seed: int) -> Mapping[str, Tensor]:
            generator = torch.Generator(device).manual_seed(1000 + seed)

            def normal(*shape: int) -> Tensor:
                return torch.randn(shape, generator=generator, device=device)

            rows = batch, self.length
            found = {
                "x": normal(*rows, channels).to(dtype),
                "dt": (of_dt * normal(*rows, channels).exp()).to(wide),
                "a": (-of_a * normal(channels, states).exp()).to(wide),
                "b": normal(*rows, states).to(dtype),
                "c": normal(*rows, states).to(dtype),
            }
            if self.skip:
                found["d"] = normal(channels).to(wide)
            if self.gate != "none":
                z = normal(*rows, channels)
                found["z"] = (torch.zeros_like(z) if self.gate == "zero" else 4 * z).to(dtype)
            if self.state:
                found["state"] = normal(batch, channels, states).to(wide)
            if self.starts != "none":
                begins = torch.rand(rows, generator=generator, device=device) < 0.1
                begins[:, 0] = self.starts == "first"
                begins[0, self.length // 2] = True
                found["starts"] = begins
            return {name: LAYOUTS[self.layout](x) if x.dim() == 3 else x for name, x in found.items()}

        return make


def contiguous(x: Tensor) -> Tensor:
    return x


def time_first(x: Tensor) -> Tensor:
    """(T, B, E) in memory."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def channels_outside(x: Tensor) -> Tensor:
    """(B, E, T) in memory, as a convolution leaves it."""
    return x.mT.contiguous().mT


def one_of_several(x: Tensor) -> Tensor:
    """A chunk of a wider projection, with an offset and gaps."""
    wider = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 3, dtype=x.dtype, device=x.device)
    view = wider[..., x.shape[-1] + 1 : 2 * x.shape[-1] + 1]
    view.copy_(x)
    return view


def one_batch(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape)


LAYOUTS = {
    "": contiguous,
    "time-first": time_first,
    "channels-outside": channels_outside,
    "one-of-several": one_of_several,
    "one-batch": one_batch,
}


@lru_cache
def scan_cases(chunk: int) -> tuple[ScanCase, ...]:
    """Every pair of levels, for a form that cuts sequences into chunks of that length; the shortest first."""
    factors: dict[str, tuple[Any, ...]] = {
        "length": (1, 2, chunk - 1, chunk, chunk + 1, 2 * chunk, 3 * chunk + 2),
        "dtype": tuple(DTYPES),
        "decay": tuple(DECAYS),
        "steps": ("wide", "same"),
        "gate": ("none", "normal", "zero"),
        "skip": (True, False),
        "state": (False, True),
        "starts": ("none", "some", "first"),
        "layout": tuple(LAYOUTS),
        "shape": ((2, 5, 16), (2, 1, 1), (3, 33, 3)),
        "upstream": ("", "ones"),
        "gradients": tuple(GRADIENTS),
    }
    rows = cover(factors, lambda row: True, lambda pair: True)
    return tuple(sorted((ScanCase(**row) for row in rows), key=lambda case: (case.length, str(case))))


def plain_selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None = None,
    *,
    z: Tensor | None = None,
    state: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One position after the other; what is as wide as x is rounded to its dtype, states and decays to float32.

    States in bfloat16 would make a budget that a kernel with such states passes: sums are float32 here, as `budget` has
    them.
    """
    wide = accumulation_dtype(x.dtype)
    h = x.new_zeros(x.shape[0], *a.shape, dtype=wide) if state is None else state.to(wide)
    outputs = []
    for t in range(x.shape[1]):
        if starts is not None:
            h = h.masked_fill(starts[:, t, None, None], 0.0)
        entering = (dt[:, t] * x[:, t]).to(x.dtype)
        decay = torch.exp(dt[:, t, :, None].to(wide) * a.to(wide))
        h = decay * h + entering[..., None].to(wide) * b[:, t, None, :].to(wide)
        outputs.append((h * c[:, t, None, :].to(wide)).sum(dim=-1).to(x.dtype))
    y = torch.stack(outputs, dim=1)
    if d is not None:
        y = (y + d.to(x.dtype) * x).to(x.dtype)
    if z is not None:
        y = y * torch.nn.functional.silu(z)
    return y, h


def scan_magnitudes(inputs: Mapping[str, Tensor], upstream: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For each result the sum of its terms' absolute values: the recurrence and its derivative of absolute values.

    A decay falls as dt |a| grows, and is differentiated here as if it grew, so that no two terms cancel.
    """
    leaves = {name: x.abs().requires_grad_() for name, x in inputs.items() if x.is_floating_point()}
    x, dt, a, b, c = (leaves[name] for name in ("x", "dt", "a", "b", "c"))
    starts = inputs.get("starts")
    h = leaves.get("state", x.new_zeros(x.shape[0], *a.shape))
    outputs = []
    for t in range(x.shape[1]):
        exponent = dt[:, t, :, None] * a
        decay = torch.exp(-exponent.detach()) * torch.exp(exponent - exponent.detach())
        if starts is not None:
            h = h.masked_fill(starts[:, t, None, None], 0.0)
        h = decay * h + (dt[:, t] * x[:, t])[..., None] * b[:, t, None, :]
        outputs.append((h * c[:, t, None, :]).sum(dim=-1))
    y = torch.stack(outputs, dim=1)
    if "d" in leaves:
        y = y + leaves["d"] * x
    if "z" in leaves:
        sigmoid = torch.sigmoid(inputs["z"])
        of_sigmoid = sigmoid * (1 + inputs["z"].abs() * (1 - sigmoid))  # its exponent's rounding grows with z
        size = leaves["z"].detach()
        y = y * (of_sigmoid * (size + (1 + size) * (leaves["z"] - size)))
    results = {"y": y, "final": h}
    found = {name: x.detach() for name, x in results.items()}
    if upstream:
        gradients = torch.autograd.grad(
            [results[name] for name in upstream],
            list(leaves.values()),
            [x.abs() for x in upstream.values()],
            allow_unused=True,
        )
        found |= {f"d{name}": x for name, x in zip(leaves, gradients, strict=True) if x is not None}
    return found


def hold_scan(candidate: Scan, case: ScanCase, device: torch.device) -> tuple[Report, ...]:
    """Hold a scan to the definition in one case: y, the final state and all gradients, or AssertionError."""
    make = case.make_inputs(device)
    names = tuple(make(0))

    def by_name(function: Scan) -> Scan:
        return lambda *tensors: function(**dict(zip(names, tensors, strict=True)))

    return verify(
        by_name(candidate),
        make,
        reference=by_name(reference_selective_scan),
        plain=by_name(plain_selective_scan),
        magnitudes=lambda *tensors, upstream: scan_magnitudes(dict(zip(names, tensors, strict=True)), upstream),
        outputs=("y", "final"),
        gradient_of=GRADIENTS[case.gradients],
        upstream=expanded_ones if case.upstream == "ones" else random_upstream,
    )
