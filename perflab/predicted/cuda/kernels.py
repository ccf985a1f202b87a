"""Knows what a trace of operators does not show: temporary memory of CUDA kernels, and launches an operator.

From PyTorch's sources; where a file is named, it is below ``aten/src/ATen/native``. Bytes are as they are asked for,
unrounded, those of the worst moment. Families of operators have files of their own (``attention_kernels``,
``convolutions``, ``sorting``, ``reductions``, ``multi_tensor``). Left out: cuBLAS's workspace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from perflab.predicted.cuda import attention_kernels, convolutions, sorting
from perflab.predicted.cuda.attention_kernels import ON_HOST
from perflab.predicted.cuda.devices import on_host
from perflab.predicted.cuda.multi_tensor import CHUNK, Lists, Part
from perflab.predicted.cuda.reductions import Processor, staging
from perflab.torch_internals.dispatch import aten

_FLOAT32 = 4
_INDEX = 8

H100 = Processor(132, 90)
_GROUPED_MM = "_grouped_mm"
"""It has one kernel or many by the GPU."""
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


def launches(
    operator: str, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None, gpu: Processor = H100
) -> int:
    """How many kernels the call launches. Views, which launch none, are not asked about; copies count as kernels.

    1 where nothing else is known; 0 for what only takes memory, or works on the host.
    """
    name = operator.removeprefix("aten::")
    if name.startswith("empty") or name in _LAUNCH_NOTHING:
        return 0
    if name.startswith(_OVER_LISTS) and arguments and _is_list(arguments[0]):
        lists = lists_of(name, arguments)
        return lists.launches if lists is not None else 0
    if name == _GROUPED_MM:
        return sorting.grouped_mm_launches(gpu.architecture, *arguments, **(keywords or {}))
    rule = _LAUNCHES.get(name, 1)
    return rule if isinstance(rule, int) else rule(*arguments, **(keywords or {}))


def check_operators() -> None:
    """That operators are still called as in these tables: renamed ones would take nothing in passing, and one launch.

    Raises:
        InternalsError: one of them is not there.
    """
    for name in sorted({*_HIDDEN, *_REDUCTIONS, *ON_HOST, *_LAUNCHES, *_LAUNCH_NOTHING, _GROUPED_MM}):
        aten(name, "know what its kernel takes in passing")


def _embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> int:
    """Indices that are expanded, as positions of a batch are, are written out first."""
    return 0 if indices.is_contiguous() else indices.nbytes


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


def _foreach_norm(tensors: Sequence[torch.Tensor], *_: Any, **__: Any) -> int:
    """``cuda/ForeachReduceOp.cu``: a float32 for every chunk of the largest tensor, for every tensor."""
    if not tensors or on_host(tensors[0]):
        return 0
    most = max(math.ceil(one.numel() / CHUNK) for one in tensors)
    return len(tensors) * most * max(_FLOAT32, tensors[0].element_size())


def _softmax_backward(grad: torch.Tensor, *_: Any, **__: Any) -> int:
    """``cuda/SoftMax.cu``, ``softmax_backward_cuda_out``: the gradient times the result, before the kernel."""
    return grad.nbytes


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
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "_softmax_backward_data": _softmax_backward,
    "_foreach_norm": _foreach_norm,
    **attention_kernels.HIDDEN,
    **convolutions.HIDDEN,
    **sorting.HIDDEN,
}


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
    "_softmax_backward_data": 2,  # a product before it
    "cat": _cat_launches,
    "stack": _stack_launches,
    "constant_pad_nd": _pad_launches,
    "native_layer_norm_backward": 2,  # the input's gradient; weight's and bias's (cuda/layer_norm_kernel.cu)
    "_fused_rms_norm_backward": 2,
    "masked_fill": 2,  # a copy, then filled in place (Indexing.cu)
    "nll_loss_backward": 2,  # zeros, then the targets (cuda/NLLLoss2d.cu, Loss.cu)
    **attention_kernels.LAUNCHES,
    **convolutions.LAUNCHES,
    **sorting.LAUNCHES,
}
