"""Memory for keys and values in numbered slots, one token each, in floating point or in 8 bits with scales.

L layers, S slots, K heads of keys and values, D head dimension:

    keys, values        L times (S, K, D), a tensor a layer
    scales of int8      L times (S, K)    x ~ scale * q,  scale = max |x| / 127,  q = round(x / scale)

so no number of an int8 cache is off by more than half a scale (symmetric, one scale for each token and head; as Sheng
et al. 2023, FlexGen, section 5, which groups 64 numbers and uses 4 bits).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8)
"""Dtypes in which keys and values can be kept."""


@dataclass(frozen=True)
class Stored:
    """The content of some slots of a layer: keys and values (*shape, K, D), and scales (*shape, K) of int8."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None


class Slots:
    """Keys and values of all layers, zero until they are written.

    Args:
        layers, slots, heads, head_dim: L, S, K and D.
        dtype: out of DTYPES.
        device: where they lie.

    Raises:
        ValueError: an unknown dtype.
    """

    def __init__(
        self, layers: int, slots: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"a cache in {dtype}: wanted one of {', '.join(map(str, DTYPES))}")
        self.keys, self.values = (
            [torch.zeros(slots, heads, head_dim, dtype=dtype, device=device) for _ in range(layers)] for _ in range(2)
        )
        self.key_scales, self.value_scales = (
            [torch.zeros(slots, heads, device=device) for _ in range(layers)] if dtype == torch.int8 else None
            for _ in range(2)
        )

    @property
    def num_slots(self) -> int:
        """The number of slots in a layer, S."""
        return self.keys[0].shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of keys and values in memory."""
        return self.keys[0].dtype

    @property
    def device(self) -> torch.device:
        """The device on which keys and values lie."""
        return self.keys[0].device

    @property
    def num_bytes(self) -> int:
        """Bytes of keys, values and scales."""
        tensors = (self.keys, self.values, self.key_scales, self.value_scales)
        return sum(t.nbytes for each in tensors if each is not None for t in each)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values (N, K, D) into the slots (N,) of a layer."""
        for memory, scales, rows in (
            (self.keys, self.key_scales, keys), (self.values, self.value_scales, values)
        ):  # fmt: skip
            if scales is not None:
                rows, scale = in_8_bits(rows)
                scales[layer].index_copy_(0, slots, scale)
            memory[layer].index_copy_(0, slots, rows)

    def clear(self, slots: slice) -> None:
        """Make keys, values and scales of these slots 0, in all layers."""
        for layers in (self.keys, self.values, self.key_scales, self.value_scales):
            for memory in layers or ():
                memory[slots].zero_()

    def copy(self, source: slice, target: slice) -> None:
        """Copy slots onto others, in all layers."""
        for layers in (self.keys, self.values, self.key_scales, self.value_scales):
            for memory in layers or ():
                memory[target] = memory[source]

    def raw(self, layer: int, which: Tensor | slice, shape: tuple[int, int]) -> Stored:
        """Return the content of these slots as stored; a slice is a view."""
        keys, values, key_scales, value_scales = (
            None if x is None else x[layer][which].view(*shape, *x[layer].shape[1:])
            for x in (self.keys, self.values, self.key_scales, self.value_scales)
        )
        assert keys is not None
        assert values is not None
        return Stored(keys, values, key_scales, value_scales)

    def read(
        self, layer: int, which: Tensor | slice, shape: tuple[int, int], dtype: torch.dtype, first: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (B, K, N, D) of B x N slots as numbers; `first`: only so many of each N."""
        stored = self.raw(layer, which, shape)
        keys, values = stored.keys[:, :first], stored.values[:, :first]
        if stored.key_scales is not None and stored.value_scales is not None:
            keys = (keys * stored.key_scales[:, :first, :, None]).to(dtype)
            values = (values * stored.value_scales[:, :first, :, None]).to(dtype)
        return keys.transpose(1, 2), values.transpose(1, 2)


def sent(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Integers that the host knows, as int64 on a device. The host does not wait: from pageable memory it would."""
    is_cuda = device.type == "cuda"
    return torch.tensor(numbers, dtype=torch.int64, pin_memory=is_cuda).to(device, non_blocking=True)


def in_8_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """(..., D) -> int8 (..., D) and float32 scales (...)."""
    wide = x.float()
    scale = wide.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny) / 127  # of zeros any would do
    return (wide / scale[..., None]).round().to(torch.int8), scale


def through_8_bits(x: Tensor) -> Tensor:
    """(..., D) as an int8 cache gives it back, in the dtype of x."""
    rounded, scale = in_8_bits(x)
    return (rounded * scale[..., None]).to(x.dtype)
