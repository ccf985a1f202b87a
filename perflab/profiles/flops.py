"""FLOPs of an operator by its inputs' shapes, and which of the operators that it calls takes the time for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

from perflab.profiles.events import Call

_WORKER = re.compile(r"aten::\w*(conv|attention|mm)\w*")
"""Matches operators that may do the work of their caller, as ``aten::cudnn_convolution`` does for
``aten::convolution``."""


def flops_of(name: str, shapes: Sequence[Sequence[int]], values: Sequence[Any] = ()) -> int:
    """Return the FLOPs of one call of an operator; 0 if no formula is known.

    Causal attention counts whole, as in PyTorch's own counter.

    ``shapes`` and ``values`` are of the operator's arguments in order. An argument that is no tensor has an empty
    shape; convolutions need the values of such arguments.
    """
    namespace, _, base = name.partition("::")
    if namespace != "aten":
        return 0
    try:
        if base == "convolution":
            return _of_convolution(shapes, values)
        if base == "convolution_backward":
            return _of_its_backward(shapes, values)
        formula = _formula(base)
        return int(formula(*(list(shape) for shape in shapes if shape))) if formula is not None else 0
    except (TypeError, ValueError, IndexError, AttributeError, AssertionError):
        return 0


def flops_where_done(calls: Sequence[Call]) -> dict[int, int]:
    """Return FLOPs by ``id`` of the call whose time they take: an operator's innermost products, or the operator.

    An operator may call others to compute its result, and on a GPU those launch the kernels. So only the FLOPs of the
    outermost operator are counted, and they are divided evenly among the innermost products.
    """
    found: dict[int, int] = {}
    within: set[int] = set()
    for call in calls:  # each call comes after its caller
        if not call.event.flops or id(call) in within:
            continue
        below = [one for one in call.walk() if one is not call]
        within |= {id(one) for one in below}
        workers = [one for one in below if _WORKER.fullmatch(one.name) and not _has_worker(one)] or [call]
        for number, one in enumerate(workers):
            found[id(one)] = call.event.flops * (number + 1) // len(workers) - call.event.flops * number // len(workers)
    return found


def _has_worker(call: Call) -> bool:
    return any(_WORKER.fullmatch(one.name) for one in call.walk() if one is not call)


def _of_convolution(shapes: Sequence[Sequence[int]], values: Sequence[Any]) -> int:
    """Return the FLOPs of a convolution.

    ``aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)``
    """
    inputs, weight = shapes[:2]
    strides, paddings, dilations, transposed = values[3:7]
    steps = inputs[2:]
    if not transposed:
        steps = [
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, padding, dilation in zip(
                inputs[2:], weight[2:], strides, paddings, dilations, strict=True
            )
        ]
    return _of_steps(inputs, weight, steps)


def _of_its_backward(shapes: Sequence[Sequence[int]], values: Sequence[Any]) -> int:
    """Return the FLOPs of a convolution's backward: the gradients of input and weight each cost what the forward did.

    The gradient of the bias is a sum and counts nothing.

    ``aten::convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
    groups, output_mask)``
    """
    gradient, inputs, weight = shapes[:3]
    transposed, wanted = values[7], values[10]
    each = _of_steps(inputs, weight, (inputs if transposed else gradient)[2:])
    return each * sum(map(bool, wanted[:2]))


def _of_steps(inputs: Sequence[int], weight: Sequence[int], steps: Sequence[int]) -> int:
    """Return the FLOPs of a convolution that applies its whole weight at each step of each item of the batch.

    The channels in the weight's shape are already divided by the number of groups.
    """
    return 2 * inputs[0] * prod(steps) * prod(weight)


@cache
def _formula(base: str) -> Callable[..., Any] | None:
    import torch

    from perflab.internals.of_torch import flop_registry, sdpa_backward_flop, sdpa_flop

    own: dict[str, Callable[..., Any]] = {
        "_scaled_mm": lambda *shapes: flop_registry[torch.ops.aten.mm](*shapes[:2]),
        "_scaled_dot_product_flash_attention_for_cpu": lambda *shapes: sdpa_flop(*shapes[:3]),
        "_scaled_dot_product_flash_attention_for_cpu_backward": lambda *shapes: sdpa_backward_flop(*shapes[:4]),
    }
    if base in own:
        return own[base]
    found: Callable[..., Any] | None = flop_registry.get(getattr(torch.ops.aten, base, None))
    return found
