"""The attention variants, and what each claims. The correctness suite holds them to it.

Shapes and equation: see the package. This module runs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Unpack

import torch
from torch import Tensor

from perflab.lab.attention.scoring import Settings, dropout_probability

_16_BIT = (torch.bfloat16, torch.float16)
_UP_TO_32_BIT = (torch.float32, *_16_BIT)
_ALL = (torch.float64, *_UP_TO_32_BIT)

FEATURES = ("causal", "bottom-right", "window", "softcap", "grouped-heads", "sinks")
"""Features that attention can be asked for beyond whole matrices; `scoring` says what each means."""
DROPOUT = "dropout"
"""A feature apart: its result is drawn, so no grid can hold it against a reference, and few variants have it."""
_EVERY_FEATURE = frozenset(FEATURES)
_WITHOUT_SINKS = _EVERY_FEATURE - {"sinks"}
_SDPA = frozenset(("causal", "grouped-heads"))


@dataclass(frozen=True, slots=True)
class Implementation:
    """One variant's claims.

    name           what `attention(impl=...)` takes
    summary        one line for a reader
    dtypes         the input dtypes that it accepts
    features       what it can be asked for, out of FEATURES and DROPOUT
    gradients      it can be differentiated with respect to q, k and v
    logsumexp      `attention_with_logsumexp` can have its log-sum-exp
    needs_triton   it imports Triton, and wants a CUDA device or Triton's interpreter
    deterministic  the same inputs on the same machine give the same bits, gradients included
    devices        the device types that it runs on; None: wherever PyTorch does
    compiles       the first call with a shape compiles, for seconds
    proven         its kernels have run, on a GPU or in Triton's interpreter; a variant that is not proven is taken by
                   its name alone: no grid and no study has it, and no remedy offers it
    more_on        what it claims beyond that on a type of device, by field; see `on`
    """

    name: str
    summary: str
    dtypes: tuple[torch.dtype, ...] = _ALL
    features: frozenset[str] = _EVERY_FEATURE
    gradients: bool = True
    logsumexp: bool = True
    needs_triton: bool = False
    deterministic: bool = True
    devices: tuple[str, ...] | None = None
    compiles: bool = False
    proven: bool = True
    more_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def on(self, device_type: str) -> "Implementation":
        """The claims on one type of device: these, which hold on all of `devices`, and what it can do there besides."""
        return replace(self, **self.more_on[device_type]) if device_type in self.more_on else self

    def has(self, needed: frozenset[str]) -> bool:
        """Whether it claims all these features, on some type of device at least."""
        return any(needed <= self.on(device_type).features for device_type in ("any", *self.more_on))

    @property
    def trains(self) -> bool:
        """Whether it can be differentiated on some type of device."""
        return self.gradients or any(more.get("gradients", False) for more in self.more_on.values())

    def runs_on(self, device_type: str) -> bool:
        """Whether it is there at all on that type of device."""
        return self.devices is None or device_type in self.devices


# Code that is compiled reads this: Dynamo reads no mapping proxy once the trace has set an attribute of any object.
_REGISTERED = {
    implementation.name: implementation
    for implementation in (
        Implementation("reference", "the definition in float64, cast to the inputs' dtype"),
        Implementation(
            "naive",
            "the definition written out in the inputs' dtype; holds N_q x N_k",
            features=_EVERY_FEATURE | {DROPOUT},
        ),
        Implementation("tiled", "FlashAttention-2 forward and backward in plain PyTorch"),
        Implementation(
            "triton",
            "FlashAttention-2 forward and backward as Triton kernels",
            dtypes=_UP_TO_32_BIT,
            needs_triton=True,
        ),
        Implementation(
            "triton-tma",
            "the same with a persistent forward by way of TMA, for Hopper and later",
            dtypes=_UP_TO_32_BIT,
            features=_WITHOUT_SINKS,
            needs_triton=True,
        ),
        Implementation(
            "triton-one-pass",
            "triton with a backward in one pass where that takes fewer cycles",
            dtypes=_UP_TO_32_BIT,
            needs_triton=True,
            # One pass adds up dQ with atomics; Triton's interpreter runs the programs one after another.
            deterministic=False,
            more_on={"cpu": {"deterministic": True}},
        ),
        Implementation(
            "triton-gluon",
            "triton-one-pass with its kernel in Gluon on an A100 at head dimension 128; no GPU has run it yet",
            dtypes=_UP_TO_32_BIT,
            needs_triton=True,
            deterministic=False,
            devices=("cuda",),  # elsewhere it would be triton-one-pass
            proven=False,
        ),
        Implementation(
            "decode",
            "for generating: keys split among programs, in plain PyTorch; forward only",
            features=_WITHOUT_SINKS,
            gradients=False,
        ),
        Implementation(
            "triton-decode",
            "the same as Triton kernels; grouped heads share one read of the keys",
            dtypes=_UP_TO_32_BIT,
            features=_WITHOUT_SINKS,
            gradients=False,
            needs_triton=True,
        ),
        Implementation(
            "sdpa",
            "torch.nn.functional.scaled_dot_product_attention, PyTorch choosing the backend",
            features=_SDPA | {DROPOUT},
            logsumexp=False,
            # Its CUDA backwards add up dQ with atomics, in an order that differs from run to run.
            deterministic=False,
        ),
        Implementation(
            "sdpa-math",
            "the same, pinned to the unfused backend, which takes everything; holds N_q x N_k",
            features=_SDPA | {DROPOUT},
            logsumexp=False,
        ),
        Implementation(
            "sdpa-flash",
            "the same, pinned to FlashAttention-2; PyTorch's own C++ on a CPU",
            dtypes=_16_BIT,
            features=_SDPA,
            logsumexp=False,
            deterministic=False,  # on CUDA, as above
            devices=("cpu", "cuda"),
            # On a CPU each head's gradients are added up by one thread, in order; and there is no dropout.
            more_on={
                "cpu": {"dtypes": _ALL, "deterministic": True},
                "cuda": {"features": _SDPA | {DROPOUT}},
            },
        ),
        Implementation(
            "sdpa-efficient",
            "the same, pinned to the memory-efficient kernels of CUTLASS",
            dtypes=_UP_TO_32_BIT,
            features=frozenset(("causal", DROPOUT)),
            logsumexp=False,
            deterministic=False,  # as above
            devices=("cuda",),
        ),
        Implementation(
            "sdpa-cudnn",
            "the same, pinned to cuDNN",
            dtypes=_16_BIT,
            features=_SDPA | {DROPOUT},
            logsumexp=False,
            deterministic=False,  # as above
            devices=("cuda",),
        ),
        Implementation(
            "flex",
            "FlexAttention, compiled on CUDA; on a CPU PyTorch's unfused one, forward only",
            dtypes=_UP_TO_32_BIT,
            gradients=False,
            devices=("cpu", "cuda"),
            compiles=True,
            # Its backward kernels give each program rows of its own: no atomics.
            more_on={"cpu": {"dtypes": _ALL}, "cuda": {"gradients": True}},
        ),
        Implementation(
            "compiled",
            "torch.compile of naive; holds N_q x N_k",
            # On CUDA the compiler may time several ways to cut up a sum, and keep another one in each process.
            deterministic=False,
            devices=("cpu", "cuda"),
            compiles=True,
            more_on={"cpu": {"deterministic": True}},
        ),
    )
}
IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(_REGISTERED)
"""Every attention variant by its name, with what it claims."""
PROVEN: Mapping[str, Implementation] = MappingProxyType(
    {name: implementation for name, implementation in _REGISTERED.items() if implementation.proven}
)
"""The variants whose kernels have run: those of grids, studies and remedies, where nobody chose one by its name."""


def needed_features(q: Tensor, k: Tensor, **settings: Unpack[Settings]) -> frozenset[str]:
    """Return the FEATURES, and DROPOUT, that these tensors and settings ask for."""
    is_causal, window_size = settings.get("is_causal", False), settings.get("window_size")
    has_window = window_size is not None and tuple(window_size) != (-1, -1)
    bottom_right = settings.get("causal_alignment") == "bottom-right"
    asked = {
        "causal": is_causal,
        # With equal lengths both alignments are one.
        "bottom-right": bottom_right and (is_causal or has_window) and q.shape[-2] != k.shape[-2],
        "window": has_window,
        "softcap": settings.get("softcap") is not None,
        "grouped-heads": q.shape[:-2] != k.shape[:-2],
        "sinks": has_window and settings.get("sinks", 0) > 0,
        DROPOUT: dropout_probability(**settings) > 0,
    }
    return frozenset(name for name, wanted in asked.items() if wanted)


def variants_with(needed: frozenset[str]) -> list[str]:
    """The proven variants that have all these features, each on some type of device at least."""
    return [name for name, claims in PROVEN.items() if claims.has(needed)]


def require_features(claims: Implementation, needed: frozenset[str]) -> None:
    """NotImplementedError, with the variants that have them, where features are needed that this one lacks."""
    lacking = sorted(needed - claims.features)
    if lacking:
        able = ", ".join(variants_with(needed))
        raise NotImplementedError(
            f"attention impl {claims.name!r} has no {' and no '.join(lacking)}; choose one of: {able}"
        )


def require_device(claims: Implementation, device: torch.device) -> None:
    """RuntimeError, with the variants that are there, where this one does not exist on that type of device."""
    if not claims.runs_on(device.type):
        able = ", ".join(name for name, other in PROVEN.items() if other.runs_on(device.type))
        raise RuntimeError(
            f"attention impl {claims.name!r} exists on {' and '.join(claims.devices or ())} alone, got tensors on "
            f"{device}; move them, or choose one of: {able}"
        )


def require_gradients(claims: Implementation, *tensors: Tensor) -> None:
    """NotImplementedError where a gradient would be recorded and the variant has no backward there."""
    if claims.gradients or not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
        return
    device_type = tensors[0].device.type
    able = ", ".join(
        name for name, other in PROVEN.items() if other.runs_on(device_type) and other.on(device_type).gradients
    )
    raise NotImplementedError(
        f"attention impl {claims.name!r} has no backward on {device_type}; call it under torch.no_grad(), or choose "
        f"one of: {able}"
    )


def get_implementation(impl: str) -> Implementation:
    """The variant of that name; ValueError with all the names where there is none."""
    if impl not in _REGISTERED:
        raise ValueError(f"unknown attention impl {impl!r}; choose one of: {', '.join(_REGISTERED)}")
    return _REGISTERED[impl]
