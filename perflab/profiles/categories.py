"""Determines the category of an operator's own time, by the operator, its phase and the operators around it.

FLOPs of an operator follow from its inputs' shapes; of the operators that it calls, those are found that take the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

from perflab.profiles.events import COMPILED_GRAPH, COMPILED_REGION, NODE, OPTIMIZER_STEP, Call, Placed
from perflab.results.profile import BACKWARD, OPTIMIZER

_PRODUCTS = re.compile(
    r"aten::(_?addmm.*|mm|bmm|baddbmm|addbmm|addmv_?|mv|dot|vdot|linear|matmul|einsum|_scaled_mm.*|_int_mm|_grouped_mm"
    r"|conv\w*|_conv\w*|convolution.*|mkldnn_\w*|cudnn_conv\w*|slow_conv\w*|thnn_conv\w*"
    r"|linalg_(?!(vector_|matrix_)?norm)\w+)|mkldnn::\w+"
)
_BATCHED = re.compile(r"aten::(bmm|baddbmm)")
_SOFTMAX = re.compile(r"aten::_(safe_)?softmax(_backward_data)?")
_ATTENTION = re.compile(
    r"\w+::_?(scaled_dot_product|flash_attention|efficient_attention|cudnn_attention|flex_attention).*"
)
_COPIES = re.compile(
    r"aten::(copy_|_to_copy|to|clone|contiguous|cat|concat\w*|[hvd]?stack|\w+_stack|_foreach_copy_|_copy_from.*|_pin_memory"
    r"|type_as|repeat|tile|roll|flip\w*|rot90|\w*pad(_enum|_nd|\dd)?|item|is_nonzero|_local_scalar_dense)"
)
_LOSS = re.compile(
    r"aten::(_?embedding.*|index_select|cross_entropy.*|nll_loss.*|_?log_softmax.*|mse_loss.*|binary_cross_entropy.*"
    r"|kl_div.*|smooth_l1_loss.*|huber_loss.*|logsumexp)"
)
_NORMS = re.compile(r"aten::(native_|_fused_|cudnn_|_native_)?(layer|rms|group|batch|instance)_norm\w*")
_SIZES = re.compile(r"(\d+)x(\d+)(?![\dx])")
_SIZES_OF_NVTX = re.compile(r"(\d+), (\d+)\]")
_COMMUNICATION = re.compile(r"(c10d|_c10d_functional|record_param_comms|nccl|gloo)(::|:|$).*")
_COMPILED = re.compile(
    rf"{COMPILED_REGION}|{COMPILED_GRAPH}|CompiledFunction.*|(cpp|triton)_(fused|poi|red|per|tem)_.*|inductor::.*"
    r"|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime Wrapper Prologue"
)
_NO_WORK = re.compile(
    r"(?:aten::)?(empty\w*|new_empty\w*|view\w*|_unsafe_view|_reshape_alias|reshape|t|t_|transpose_?|permute|as_strided_?"
    r"|expand\w*|unsqueeze_?|squeeze_?|select|slice|narrow|(tensor_|[hvd])?split\w*|chunk|unbind|unflatten|flatten|ravel"
    r"|detach_?|alias|resolve_conj|resolve_neg|lift_fresh|result_type|set_|resize_|move(dim|axis)|swap(dims|axes)_?|numpy_T"
    r"|stride|size|is_same_size|mT|mH|diagonal|unfold|broadcast_tensors|requires_grad_|_assert\w*)"
)
_NODE_OF_PYTORCH = re.compile(r"\w+Backward\d+")
"""Matches the names of PyTorch's own backward nodes, which end in a number: ``MmBackward0``. The name of a user's
``autograd.Function`` has no number."""
BACKWARD_SCOPE = 1
"""The value of PyTorch's ``RecordScope::BACKWARD_FUNCTION``."""
_OF_CALLERS = ("products forward", "products backward", "attention", "embedding and loss")
"""Categories that an operator takes over from the operators it calls, in order of precedence. An operator that casts
its inputs is no copy, so ``copies`` is left out."""


def categories(found: Sequence[Placed]) -> list[str]:
    """Return the category of each operator's own time, in the order of ``found``.

    A module that itself calls a softmax between two batched products computes written-out attention. The work of such a
    module is attention, except for products with weights and norms. Measured times are not considered, since they
    differ from run to run.
    """
    cores = _written_out(found)
    known: dict[int, str] = {}
    for one in reversed(found):  # reversed: an operator's callees come before it
        known[id(one.call)] = _category(one, known, one.where.module in cores)
    return [known[id(one.call)] for one in found]


def _written_out(found: Sequence[Placed]) -> set[str]:
    """Return the modules with a softmax between two batched products, the second of which takes the softmax's result.

    The result is recognised by the last two sizes of its shape, if shapes are known. A router's softmax does not make
    attention of its experts' products, which do not take the softmax's result.
    """
    with_products: set[str] = set()
    scores: dict[str, set[tuple[str, str]]] = {}
    cores: set[str] = set()
    for one in found:
        module, name = one.where.module, one.call.name
        if not module or one.in_backward:
            continue
        if _BATCHED.fullmatch(name):
            with_products.add(module)
            wanted = scores.get(module)
            if wanted is not None and (not wanted or wanted & _last_two(one.call.event.shapes)):
                cores.add(module)
        elif _SOFTMAX.fullmatch(name) and module in with_products:
            scores.setdefault(module, set()).update(_last_two(one.call.event.shapes))
    return cores


def _last_two(shapes: str) -> set[tuple[str, str]]:
    """Return the last two sizes of each tensor in ``8x512x64, 8x64x512`` or in ``[[8, 512, 64], [8, 64, 512]]``."""
    return set((_SIZES_OF_NVTX if shapes.startswith("[") else _SIZES).findall(shapes))


def _category(one: Placed, known: dict[int, str], in_core: bool) -> str:
    call, name = one.call, one.call.name
    if name.startswith((NODE, "torch::autograd::")) or call.event.scope == BACKWARD_SCOPE:
        if _COMPILED.fullmatch(name):
            return "compiled code"
        ours = name.startswith((NODE, "torch::")) or _NODE_OF_PYTORCH.fullmatch(name)
        return "dispatch" if ours else "your operators"
    if _NO_WORK.fullmatch(name):
        return "dispatch"
    if _COMMUNICATION.fullmatch(name):
        return "communication"
    if one.phase == OPTIMIZER or any(above.name.startswith(OPTIMIZER_STEP) for above in call.above()):
        return OPTIMIZER
    if _COMPILED.fullmatch(name):
        return "compiled code"
    if _ATTENTION.fullmatch(name) or any(_ATTENTION.fullmatch(above.name) for above in call.above()):
        return "attention"
    if any(_LOSS.fullmatch(_forward_of(above.name)) for above in call.above()):
        return "embedding and loss"
    if _PRODUCTS.fullmatch(name) and not (in_core and any(_BATCHED.fullmatch(one.name) for one in call.walk())):
        return "products backward" if one.in_backward or one.role == BACKWARD else "products forward"
    if _LOSS.fullmatch(name):
        return "embedding and loss"
    if in_core and not any(_NORMS.fullmatch(other.name) for other in (call, *call.above())):
        return "attention"
    if _COPIES.fullmatch(name):
        return "copies"
    if not name.startswith("aten::"):
        return "your operators"
    below = {known[id(child)] for child in call.children if id(child) in known}
    return next((category for category in _OF_CALLERS if category in below), "element-wise and norms")


@cache
def _forward_of(name: str) -> str:
    """Return the operator of a backward node, ``aten::mse_loss`` for ``MseLossBackward0``; other names unchanged."""
    node = name.removeprefix(NODE)
    if not _NODE_OF_PYTORCH.fullmatch(node):
        return name
    return "aten::" + re.sub("(?<!^)(?=[A-Z])", "_", node.rpartition("Backward")[0]).lower()


def category_without_place(name: str) -> str:
    """Return the category of an operator known by name alone: the call recorded with places lacks the operator."""
    return "compiled code" if _COMPILED.fullmatch(name) else "other"


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
        if base == "convolution":  # input, weight, bias, stride, padding, dilation, transposed, …
            (inputs, weight), (strides, paddings, dilations, transposed) = shapes[:2], values[3:7]
            steps, times = inputs[2:], 1
            if not transposed:
                lengths = zip(inputs[2:], weight[2:], strides, paddings, dilations, strict=True)
                steps = [
                    (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
                    for size, kernel, stride, padding, dilation in lengths
                ]
        elif base == "convolution_backward":  # grad, input, weight, bias_sizes, stride, padding, dilation, transposed
            gradient, inputs, weight = shapes[:3]
            steps = (inputs if values[7] else gradient)[2:]
            # The gradients of input and weight each cost what the forward did; that of the bias is a sum, and nothing.
            times = sum(map(bool, values[10][:2]))
        if base in ("convolution", "convolution_backward"):
            # The whole weight is applied at each step of each item of the batch; groups divide its channels.
            return 2 * inputs[0] * prod(steps) * prod(weight) * times
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
        named = {id(one) for one in below if _WORKER.fullmatch(one.name)}
        around = {id(above) for one in below if id(one) in named for above in one.above()}
        workers = [one for one in below if id(one) in named - around] or [call]
        for number, one in enumerate(workers):
            found[id(one)] = call.event.flops * (number + 1) // len(workers) - call.event.flops * number // len(workers)
    return found


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
