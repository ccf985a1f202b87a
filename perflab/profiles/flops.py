"""Multiplications and additions of an operator, by its inputs' shapes; and which operator that it calls does them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

from perflab.profiles.events import Call

_WORKER = re.compile(r"aten::\w*(conv|attention|mm)\w*")
"""Operators that may do the work of one that calls them: ``aten::convolution`` has ``aten::cudnn_convolution``."""


def flops_of(name: str, shapes: Sequence[Sequence[int]], values: Sequence[Any] = ()) -> int:
    """FLOPs of one call; 0 where nothing is known. Causal attention counts whole, as in PyTorch's own counter.

    ``shapes`` and ``values`` are of its arguments in order: shapes are empty for what is no tensor, and convolutions
    need the values of what is none.
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
    """FLOPs by ``id`` of the call whose time they take: of the innermost products that an operator calls, or its own.

    An operator may have others compute what it is known to compute. On a GPU these launch the kernels. So what the
    outermost one computes counts, and it counts for those.
    """
    found: dict[int, int] = {}
    within: set[int] = set()
    for call in calls:  # each comes after its caller
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
    """``aten::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)``."""
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
    """Each of the gradients of input and weight costs what the forward did; the bias's is a sum.

    ``aten::convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed,
    output_padding, groups, output_mask)``
    """
    gradient, inputs, weight = shapes[:3]
    transposed, wanted = values[7], values[10]
    each = _of_steps(inputs, weight, (inputs if transposed else gradient)[2:])
    return each * sum(map(bool, wanted[:2]))


def _of_steps(inputs: Sequence[int], weight: Sequence[int], steps: Sequence[int]) -> int:
    """The whole weight is applied at each step of each item of the batch: its shape has groups taken off already."""
    return 2 * inputs[0] * prod(steps) * prod(weight)


@cache
def _formula(base: str) -> Callable[..., Any] | None:
    import torch

    from perflab.torch_internals import flop_registry, sdpa_backward_flop, sdpa_flop

    own: dict[str, Callable[..., Any]] = {
        "_scaled_mm": lambda *shapes: flop_registry[torch.ops.aten.mm](*shapes[:2]),
        "_scaled_dot_product_flash_attention_for_cpu": lambda *shapes: sdpa_flop(*shapes[:3]),
        "_scaled_dot_product_flash_attention_for_cpu_backward": lambda *shapes: sdpa_backward_flop(*shapes[:4]),
    }
    if base in own:
        return own[base]
    found: Callable[..., Any] | None = flop_registry.get(getattr(torch.ops.aten, base, None))
    return found
