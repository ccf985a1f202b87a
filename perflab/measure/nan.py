"""Checks a tensor for NaN without a second tensor of its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_PART_ELEMENTS = 1 << 20


def tensor_holds_nan(tensor: torch.Tensor) -> bool:
    """Whether any element of a strided tensor is NaN.

    A maximum is NaN then; of dtypes that have none, parts are looked at one by one.
    """
    import torch

    if tensor.device.type == "meta" or not tensor.numel():
        return False
    tensor = tensor.detach()
    if tensor.is_complex():
        # A conjugate is NaN where the number is; to make it would be to copy it.
        both = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)
        return tensor_holds_nan(both)
    if not tensor.is_floating_point():
        return False
    if tensor.itemsize > 1:
        return bool(tensor.amax().isnan())
    return any(bool(part.isnan().any()) for part in _parts(tensor))


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Views of a tensor of at most ``_PART_ELEMENTS``, halved along the longest dimension until they are."""
    if tensor.numel() <= _PART_ELEMENTS:
        return [tensor]
    longest = max(range(tensor.ndim), key=lambda dimension: tensor.shape[dimension])
    halves = tensor.tensor_split(2, dim=longest)
    return [part for half in halves for part in _parts(half)]
