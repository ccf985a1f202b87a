"""Summarises a call's outputs in a few numbers per tensor: enough to see whether two versions compute the same."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perflab.base.reachable import reachable
from perflab.internals.of_torch.tracing import parts_of

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

_ELEMENTS = 32
"""Number of elements of a tensor that are compared one by one, at most."""


def outputs_of(workload: Workload) -> dict[str, list[str]]:
    """Call the workload once, with the same random numbers in each process, and summarise its outputs.

    Returns:
        The type with shape, the mean, and elements spread over the tensor, of each tensor of a kind: the returned
        value, parameters, or gradients of the objects that the call holds. Numbers are text, since JSON knows no
        infinities.
    """
    import torch

    torch.manual_seed(0)
    workload.make_ready(1)
    result = workload.run()
    leaves = [one for one in _tensors_in(workload.roots) if one.is_leaf]
    found = {
        "the returned value": [_as_tensor(result)] if isinstance(result, int | float) else _tensors_in((result,)),
        "parameters": [one for one in leaves if one.requires_grad],
        "gradients": [one.grad for one in leaves if one.grad is not None],
    }
    with torch.no_grad():  # sorted, since a change of the code may change the order in which tensors are found
        sums = {what: sorted(_summed_up(part) for one in found[what] for part in parts_of(one)) for what in found}
    return {what: [str(number) for one in some for number in one] for what, some in sums.items()}


def _as_tensor(number: float) -> torch.Tensor:
    import torch

    try:
        return torch.tensor(float(number), dtype=torch.float64)
    except OverflowError:  # an integer of more digits than floats have
        return torch.tensor(math.inf)


def _tensors_in(roots: tuple[Any, ...]) -> list[torch.Tensor]:
    import torch

    return [one for one in reachable(roots) if isinstance(one, torch.Tensor)]


def _summed_up(tensor: torch.Tensor) -> tuple[str | float, ...]:
    import torch

    values: list[float] = []
    with contextlib.suppress(Exception):  # a class of the user's, say, that knows none of this
        flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().flatten()
        picked = flat[:: max(1, flat.numel() // _ELEMENTS)][:_ELEMENTS].double()
        values = [float(flat.sum(dtype=torch.float64)) / max(1, flat.numel()), *picked.tolist()]
    return f"{tensor.dtype} {list(tensor.shape)}", *values


def distance(before: Sequence[str], now: Sequence[str]) -> float:
    """Return the largest difference between outputs, as a share of the largest value.

    The distance is infinite if the outputs differ in number, shape or type, or by a NaN or an infinity.
    """
    try:
        gaps = [abs(float(one) - float(other)) for one, other in zip(before, now, strict=True) if one != other]
    except ValueError:  # the outputs differ in number, shape or type
        return math.inf
    if not all(map(math.isfinite, gaps)):
        return math.inf
    values = [abs(float(one)) for one in (*before, *now) if " " not in one]
    largest = max(filter(math.isfinite, values), default=0.0)
    return max(gaps) / largest if gaps and largest else 0.0  # 0.0 and -0.0 are the same
