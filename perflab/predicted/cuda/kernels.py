"""Knows what a trace of operators does not show: temporary memory of CUDA kernels, and launches an operator.

From PyTorch's sources; where a file is named, it is below ``aten/src/ATen/native``. Shapes: query ``(B, H, N, D)``, key
``(B, G, M, D)``, value ``(B, G, M, Dv)``. Bytes are as they are asked for, unrounded, those of the worst moment. What
sorts is in ``sorting``. Left out: FlashAttention's split keys for a handful of queries and its deterministic backward,
and cuBLAS's workspace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from perflab.predicted.cuda import sorting
from perflab.predicted.cuda.devices import on_host
from perflab.predicted.cuda.multi_tensor import CHUNK, Lists, Part
from perflab.predicted.cuda.reductions import Processor, processor, staging
from perflab.torch_internals.dispatch import aten

_FLOAT32 = 4
_INDEX = 8

H100 = processor(132, 90)
_OVER_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")


def hidden_blocks(
    operator: str, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None, gpu: Processor = H100
) -> tuple[int, ...]:
    """Blocks that the operator's kernel takes and gives back within one call, beside its results, in their order.

    ``operator`` is its name without the overload, ``aten::embedding_dense_backward``; ``arguments`` and ``keywords``
    are what it was dispatched with. Of an operator there are as many at each size: those that it does not take then
    have 0 bytes. None of them where nothing is known of any.
    """
    name, keywords = operator.removeprefix("aten::"), keywords or {}
    reduces = _REDUCTIONS.get(name)
    if reduces is not None:
        return _reduction(reduces, gpu, *arguments, **keywords)
    rule = _HIDDEN.get(name)
    found = () if rule is None else rule(*arguments, **keywords)
    return found if isinstance(found, tuple) else (found,)


def hidden_bytes(
    operator: str, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None, gpu: Processor = H100
) -> int | None:
    """The sum of the hidden blocks; None where nothing is known of any, 0 where it takes none at these sizes."""
    blocks = hidden_blocks(operator, arguments, keywords, gpu)
    return sum(blocks) if blocks else None


def results_on_host(operator: str) -> tuple[int, ...]:
    """Positions of results that are in the host's memory although the operator works on the GPU."""
    return _ON_HOST.get(operator.removeprefix("aten::"), ())


def launches(operator: str, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> int:
    """How many kernels the call launches. Views, which launch none, are not asked about; copies count as kernels.

    1 where nothing else is known; 0 for what only takes memory, or works on the host.
    """
    name = operator.removeprefix("aten::")
    if name.startswith("empty") or name in _LAUNCH_NOTHING:
        return 0
    if name.startswith(_OVER_LISTS) and arguments and _is_list(arguments[0]):
        lists = lists_of(name, arguments)
        return lists.launches if lists is not None else 0
    rule = _LAUNCHES.get(name, 1)
    return rule if isinstance(rule, int) else rule(*arguments, **(keywords or {}))


def check_operators() -> None:
    """That operators are still called as in these tables: renamed ones would take nothing in passing, and one launch.

    Raises:
        InternalsError: one of them is not there.
    """
    for name in sorted({*_HIDDEN, *_REDUCTIONS, *_ON_HOST, *_LAUNCHES, *_LAUNCH_NOTHING}):
        aten(name, "know what its kernel takes in passing")


def _round(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _copy_if_strided(tensor: torch.Tensor) -> int:
    """What ``tensor.transpose(1, 2).contiguous()`` takes: kernels want ``(B, N, H, D)``."""
    return 0 if tensor.transpose(1, 2).is_contiguous() else _bytes(tensor)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flash_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    *_: Any,
    **__: Any,
) -> int:
    """``mha_bwd`` in ``transformers/cuda/flash_attn/flash_api.cpp``: float32 dq, ``softmax_d``, dk and dv by head."""
    batch, heads, length, size = query.shape
    rounded_length, rounded_size = _round(length, 128), _round(size, 32 if size <= 128 else 64)
    accumulated = batch * heads * rounded_length * (rounded_size + 1) * _FLOAT32
    expanded = 2 * batch * key.shape[2] * heads * size * key.element_size() if key.shape[1] != heads else 0
    return accumulated + expanded + _copy_if_strided(grad) + _copy_if_strided(out)


def _cudnn_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    """An estimate, since cuDNN's workspace is its own affair: dq in float32 and a number a query, as others need."""
    batch, heads, length, size = query.shape
    return batch * heads * length * (size + 1) * _FLOAT32


def _efficient_forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    """``mem_eff_attention/kernel_forward.h``, ``kNeedsOutputAccumulatorBuffer``: above 128, in half precision."""
    if query.element_size() == _FLOAT32 or max(query.shape[-1], value.shape[-1]) <= 128:
        return 0
    batch, heads, length = query.shape[:3]
    return int(batch * heads * length * value.shape[-1] * _FLOAT32)


def _efficient_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *_: Any,
    **__: Any,
) -> int:
    """Delta and ``workspace_size``.

    ``transformers/cuda/attention_backward.cu`` and ``transformers/cuda/mem_eff_attention/kernel_backward.h``. Tiles are
    those that ``kernels/cutlassB.h`` tries first on compute capability 8.0. In float32 delta is made of whole products
    before the kernel runs.
    """
    batch, heads, length, size = query.shape
    size_of_values = value.shape[-1]
    largest = max(size, size_of_values)
    half = query.element_size() < _FLOAT32
    rows, columns = _efficient_tiles(query, value)
    each = math.ceil(length / rows) * math.ceil(size / columns) * (16 + rows * columns * _FLOAT32)
    if half and largest > 128:  # dk and dv do not stay in registers
        splits = _efficient_splits(query, key, value)
        each += splits * columns * (_round(size, rows) + _round(size_of_values, rows)) * _FLOAT32
    workspace = batch * heads * _round(each, 16)
    delta = batch * heads * length * _FLOAT32
    products = 0 if half else batch * heads * length * size_of_values * _FLOAT32
    return max(delta + workspace, products + delta) + _copy_if_strided(grad)


def _efficient_tiles(query: torch.Tensor, value: torch.Tensor) -> tuple[int, int]:
    largest, half = max(query.shape[-1], value.shape[-1]), query.element_size() < _FLOAT32
    return (64, 64) if largest <= 64 else ((128, 128) if half and largest <= 128 else (128, 64))


def _efficient_splits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """``num_splits_key``: among how many blocks the keys are divided; fewer where each keeps dk and dv in memory."""
    _, columns = _efficient_tiles(query, value)
    blocks, keys = query.shape[0] * query.shape[1], key.shape[2]
    splits = 1 if blocks >= 256 and keys <= 2 * columns else math.ceil(keys / columns)
    if query.element_size() < _FLOAT32 and max(query.shape[-1], value.shape[-1]) > 128:
        splits = min(splits, 200 // blocks)
    return max(1, splits)


def _embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> int:
    """Indices that are expanded, as positions of a batch are, are written out first."""
    return 0 if indices.is_contiguous() else _bytes(indices)


def _embedding_backward(grad: torch.Tensor, indices: torch.Tensor, num_weights: int, *rest: Any, **__: Any) -> int:
    """Above 3072 tokens they are sorted, and summed in parts. Expanded indices are written out first.

    ``cuda/Embedding.cu`` and ``cuda/EmbeddingBackwardKernel.cu``. The parts are one row of float32 for every 10 tokens,
    and one more for every row of the weight that may be met.
    """
    tokens, copied = indices.numel(), _embedding(grad, indices)
    if tokens <= 3072 and not (len(rest) > 1 and rest[1]):
        return copied
    segments = min(tokens, num_weights)
    parts = tokens // 10 + segments
    numbers = (3 * tokens + 2 * segments + parts) * indices.element_size()
    return int(copied + numbers + parts * grad.shape[-1] * max(grad.element_size(), _FLOAT32) + 2 * _INDEX)


def _safe_softmax(scores: torch.Tensor, *_: Any, **__: Any) -> int:
    """``transformers/attention.cpp``: a softmax, which entries are minus infinity, which rows have no other."""
    return _bytes(scores) + scores.numel() + scores.numel() // max(1, scores.shape[-1])


def _foreach_norm(tensors: Sequence[torch.Tensor], *_: Any, **__: Any) -> int:
    """``cuda/ForeachReduceOp.cu``: a float32 for every chunk of the largest tensor, for every tensor."""
    if not tensors or on_host(tensors[0]):
        return 0
    most = max(math.ceil(one.numel() / CHUNK) for one in tensors)
    return len(tensors) * most * max(_FLOAT32, tensors[0].element_size())


def _softmax_backward(grad: torch.Tensor, *_: Any, **__: Any) -> int:
    """``cuda/SoftMax.cu``, ``softmax_backward_cuda_out``: the gradient times the result, before the kernel."""
    return _bytes(grad)


def _laid_out_anew(tensor: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
    """Operands that a convolution copies (``Convolution.cpp``): all are to be as its input or its weight is."""
    last = torch.channels_last
    by_channels = tensor.dim() == 4 and any(
        one.is_contiguous(memory_format=last) and not one.is_contiguous() for one in (tensor, weight)
    )
    wanted = last if by_channels else torch.contiguous_format
    return [one for one in (tensor, weight, *others) if not one.is_contiguous(memory_format=wanted)]


def _convolution(tensor: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    """At the least: cuDNN's workspace is its own affair."""
    return sum(map(_bytes, _laid_out_anew(tensor, weight)))


def _convolution_backward(grad: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    return sum(map(_bytes, _laid_out_anew(tensor, weight, grad)))


def _reduction(
    dims_at: int | None, gpu: Processor, tensor: torch.Tensor, *arguments: Any, **keywords: Any
) -> tuple[int, ...]:
    """Of an operator whose argument ``dims_at``, after the tensor, names the dimensions; None: it has none such."""
    dtype = keywords.get("dtype") or next((one for one in arguments if isinstance(one, torch.dtype)), None)
    if dtype is None:
        dtype = tensor.dtype if tensor.dtype.is_floating_point else torch.int64
    dims = keywords.get("dim")
    if dims is None and dims_at is not None and dims_at < len(arguments):
        dims = arguments[dims_at]
    if on_host(tensor):
        return 0, 0
    return staging(tensor, [dims] if isinstance(dims, int) else dims or None, dtype, gpu)


_REDUCTIONS: dict[str, int | None] = {"sum": 0, "mean": 0, "linalg_vector_norm": 1}
"""Through ``cuda/Reduce.cuh``, with where the dimensions stand behind the tensor."""

_HIDDEN: dict[str, Callable[..., int | tuple[int, ...]]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "_scaled_dot_product_efficient_attention": _efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "_safe_softmax": _safe_softmax,
    "_softmax_backward_data": _softmax_backward,
    "_foreach_norm": _foreach_norm,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **sorting.HIDDEN,
}

_ON_HOST = {"_scaled_dot_product_efficient_attention": (2, 3)}
"""Seed and offset (``transformers/cuda/attention.cu``): on the GPU they are while a CUDA graph is captured."""


def _flash_backward_launches(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any) -> int:
    """``flash_bwd_launch_template.h``: the rows' products, dk and dv, dq converted; with grouped heads two sums."""
    return 3 if key.shape[1] == query.shape[1] else 5


def _efficient_backward_launches(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    """A workspace of zeros where keys are divided; in float32 a product, a sum and a copy for delta."""
    return 1 + (_efficient_splits(query, key, value) > 1) + 3 * (grad.element_size() == _FLOAT32)


def _embedding_launches(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> int:
    """One more to write out expanded indices."""
    return 1 + (not indices.is_contiguous())


def _embedding_backward_launches(grad: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> int:
    """Zeros and one kernel; above 3072 tokens about so many: a sort in passes, segments found, sums."""
    return (2 if indices.numel() <= 3072 else 15) + (not indices.is_contiguous())


def _filled_launches(sizes: Sequence[int], *_: Any, **__: Any) -> int:
    """Nothing is filled where nothing is: autograd's and libraries' placeholders."""
    return int(math.prod(sizes) > 0)


def _new_filled_launches(like: torch.Tensor, sizes: Sequence[int], *_: Any, **__: Any) -> int:
    return _filled_launches(sizes)


def _convolution_launches(
    tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any, **__: Any
) -> int:
    """cuDNN's kernel and an addition of the bias; a convolution of each channel by itself adds it as it goes."""
    by_channel = 1 < rest[5] == tensor.shape[1]
    return 1 + len(_laid_out_anew(tensor, weight)) + (bias is not None and not by_channel)


def _convolution_backward_launches(
    grad: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, *rest: Any, **__: Any
) -> int:
    """A kernel for each gradient that is asked for; the bias's is a sum."""
    return int(sum(rest[-1])) + len(_laid_out_anew(tensor, weight, grad))


def _cat_launches(tensors: Sequence[torch.Tensor], *_: Any, more_dims: int = 0, **__: Any) -> int:
    """``cuda/Shape.cu``, ``cat_out_cuda``: up to four dimensions 128 tensors at once, else a copy for each of them."""
    tensors = [one for one in tensors if one.numel()]
    if not tensors:
        return 0
    together = 128 if tensors[0].dim() + more_dims <= 4 and len({one.dtype for one in tensors}) == 1 else 1
    return math.ceil(len(tensors) / together)


def _stack_launches(tensors: Sequence[torch.Tensor], *_: Any, **__: Any) -> int:
    """A ``cat`` of tensors that each have one dimension more."""
    return _cat_launches(tensors, more_dims=1)


def _pad_launches(tensor: torch.Tensor, pad: Sequence[int], *_: Any, **__: Any) -> int:
    """``PadNd.cpp``: filled, then copied into; where it only cuts off, a copy."""
    return 2 if any(one > 0 for one in pad) else 1


def lists_of(operator: str, arguments: Sequence[Any]) -> Lists | None:
    """What an operator over lists cuts up; None of any other, and where nothing is on the GPU."""
    name = operator.removeprefix("aten::")
    if not name.startswith(_OVER_LISTS) or not arguments or not _is_list(arguments[0]):
        return None
    tensors = [one for one in arguments[0] if isinstance(one, torch.Tensor)]
    if tensors and all(on_host(one) for one in tensors):
        return None
    lists = [one for one in arguments if _is_list(one) and one and isinstance(one[0], torch.Tensor)]
    # An optimizer's step counters are a list that is not cut up with the others.
    depth = len(lists) - name.startswith("_fused_") + (not name.endswith("_") and name != "_foreach_norm")
    scalars = any(_is_list(one) and one and isinstance(one[0], int | float) for one in arguments)
    return Lists(tuple(Part(one.numel()) for one in tensors), depth, scalars, int(name == "_foreach_norm"))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


_LAUNCH_NOTHING = frozenset(("new_empty", "new_empty_strided", "lift_fresh", "_local_scalar_dense", "record_stream"))

_LAUNCHES: dict[str, int | Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward_launches,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward_launches,
    "_scaled_dot_product_cudnn_attention_backward": 3,
    "embedding": _embedding_launches,
    "embedding_dense_backward": _embedding_backward_launches,
    "slice_backward": 2,  # zeros, then a copy into them
    "select_backward": 2,
    "zeros": _filled_launches,
    "ones": _filled_launches,
    "full": _filled_launches,
    "new_zeros": _new_filled_launches,
    "new_ones": _new_filled_launches,
    "new_full": _new_filled_launches,
    "convolution": _convolution_launches,
    "convolution_backward": _convolution_backward_launches,
    "_softmax_backward_data": 2,  # a product before it
    "cat": _cat_launches,
    "stack": _stack_launches,
    "constant_pad_nd": _pad_launches,
    "_safe_softmax": 6,  # two scalars filled, softmax, eq, all, where
    "native_layer_norm_backward": 2,  # the input's gradient; weight's and bias's (cuda/layer_norm_kernel.cu)
    "_fused_rms_norm_backward": 2,
    "masked_fill": 2,  # a copy, then filled in place (Indexing.cu)
    "nll_loss_backward": 2,  # zeros, then the targets (cuda/NLLLoss2d.cu, Loss.cu)
    **sorting.LAUNCHES,
}
