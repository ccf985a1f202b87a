"""Temporary memory of CUDA kernels, and launches per operator, which a trace of operators does not show.

The rules follow PyTorch's sources; file names are relative to ``aten/src/ATen/native``. Bytes are as requested,
unrounded, at the peak within the call. Families of operators have modules of their own (``attention``, ``norms``,
``sorting``, ``reductions``). Left out: cuBLAS's workspace, and cuDNN's for convolutions, whose size is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from perflab.internals.of_torch.dispatch import aten
from perflab.predicted.cuda import attention, norms, sorting
from perflab.predicted.cuda.devices import on_host
from perflab.predicted.cuda.operands import copied
from perflab.predicted.cuda.recipes import RECIPES, inside
from perflab.predicted.cuda.reductions import REDUCTIONS, Reduction, staging
from perflab.predicted.data_sheets import MODELLED, Gpu
from perflab.predicted.trace.operators import Hidden
from perflab.predicted.trace.trace import CHUNK, Lists, Part


def _convolution_launches(
    tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any, **__: Any
) -> int:
    """Launches: cuDNN's kernel, and the addition of the bias, which a depthwise convolution adds in its own kernel."""
    by_channel = 1 < rest[5] == tensor.shape[1]
    return 1 + (bias is not None and not by_channel)


_FLOAT32 = 4
_MAX_OF_BAG = 2
_INDEX = 8

_GROUPED_MM = "_grouped_mm"
"""An operator that launches one kernel or many, depending on the GPU."""
_OVER_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")


def check_operators() -> None:
    """Check that PyTorch still has the operators of these tables under their names.

    A renamed operator would count without temporary memory and with one launch.

    Raises:
        InternalsError: PyTorch does not have one of the operators.
    """
    for name in sorted(
        {
            *_RULES,
            *(name.removesuffix(".dim") for name in REDUCTIONS),
            *attention.ON_HOST,
            *_LAUNCHES,
            *_LAUNCH_NOTHING,
            *RECIPES,
            _GROUPED_MM,
        }
    ):
        aten(name, "know what its kernel takes in passing")


def _embedding_backward(
    grad: torch.Tensor, indices: torch.Tensor, num_weights: int, *rest: Any, **__: Any
) -> tuple[int, int]:
    """Bytes of sorted tokens and partial sums above 3072 tokens.

    ``cuda/Embedding.cu`` and ``cuda/EmbeddingBackwardKernel.cu``. Partial sums are one row of float32 for every 10
    tokens, and one more for every row of the weight that may occur. ``scale_grad_by_freq`` sorts fewer tokens too.
    Launches: zeros and one kernel; above 3072 tokens about 15, for a sort in passes, segments, and sums.
    """
    are_few = indices.numel() <= 3072
    sorts = not are_few or (len(rest) > 1 and rest[1])
    return _sorted_rows(grad, indices, num_weights) if sorts else 0, 2 if are_few else 15


def _sorted_rows(grad: torch.Tensor, indices: torch.Tensor, num_weights: int) -> int:
    tokens = indices.numel()
    segments = min(tokens, num_weights)
    parts = tokens // 10 + segments
    numbers = (3 * tokens + 2 * segments + parts) * indices.element_size()
    return int(numbers + parts * grad.shape[-1] * max(grad.element_size(), _FLOAT32) + 2 * _INDEX)


def _foreach_norm(tensors: Sequence[torch.Tensor], *_: Any, **__: Any) -> tuple[int, int]:
    """Bytes of one float32 (or wider) per tensor and chunk of the largest tensor: ``cuda/ForeachReduceOp.cu``.

    Launches follow from the list.
    """
    if not tensors or on_host(tensors[0]):
        return 0, 0
    most = max(math.ceil(one.numel() / CHUNK) for one in tensors)
    return len(tensors) * most * max(_FLOAT32, tensors[0].element_size()), 0


def _summed_in(tensor: torch.Tensor, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype of a reduction's result: as asked for, else int64 of integers."""
    dtype = keywords.get("dtype") or next((one for one in arguments if isinstance(one, torch.dtype)), None)
    return dtype or (tensor.dtype if tensor.is_floating_point() or tensor.is_complex() else torch.int64)


def _converts(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> bool:
    """Whether a reduction first copies its operand to the result's dtype; a kernel reads half precision as float32."""
    dtype = _summed_in(tensor, arguments, keywords)
    return dtype != tensor.dtype and not (tensor.element_size() == 2 and dtype == torch.float32)


def _reduction_of(name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Reduction | None:
    """Return what is known of a call that reduces its tensor; None for other calls, also of ``max(tensor, other)``."""
    if any(isinstance(one, torch.Tensor) for one in arguments[1:]) or "other" in keywords:
        return None
    return REDUCTIONS.get(f"{name}.dim" if len(arguments) > 1 or "dim" in keywords else name) or REDUCTIONS.get(name)


def _reduction(
    reduction: Reduction, gpu: Gpu, tensor: torch.Tensor, *arguments: Any, **keywords: Any
) -> tuple[int, ...]:
    """Return the sizes in bytes of a reduction's two staging blocks, and of the operand in the result's dtype."""
    dtype = _summed_in(tensor, arguments, keywords)
    at = reduction.dims_at
    dims = keywords.get("dim", arguments[at] if at < len(arguments) else None)
    if on_host(tensor):
        return 0, 0, 0
    converted = reduction.is_sum and _converts(tensor, *arguments, **keywords)
    each = reduction.accumulated(tensor.dtype, dtype)
    over: Sequence[int] | None = [dims] if type(dims) is int else dims if isinstance(dims, list | tuple) else None
    return *staging(tensor, over, each, gpu), tensor.numel() * dtype.itemsize * converted


def _bias_sum(gpu: Gpu, copied_bytes: int, grad: torch.Tensor, *rest: Any, **__: Any) -> int:
    """Bytes by which the staging of the bias's gradient, which is computed last, exceeds the copies."""
    each = REDUCTIONS["sum"].accumulated(grad.dtype, grad.dtype)
    staged = sum(staging(grad, [0, *range(2, grad.dim())], each, gpu)) if rest[-1][2] else 0
    return max(0, staged - copied_bytes)


def _embedding_bag_backward(grad: torch.Tensor, indices: torch.Tensor, *rest: Any, **__: Any) -> tuple[int, int]:
    """Bytes of sorted tokens and partial sums, as above 3072 tokens of an embedding (``cuda/EmbeddingBag.cu``).

    Launches: zeros and one kernel for the largest of a bag; else a sort, segments, and sums.
    """
    num_weights, mode = int(rest[4]), rest[6]
    if mode == _MAX_OF_BAG or not indices.numel():
        return 0, 1 + bool(mode == _MAX_OF_BAG)
    digits = math.ceil(num_weights.bit_length() / 8)
    launches = 12 if indices.numel() <= sorting.ONE_TILE else 13 + digits
    return _sorted_rows(grad, indices, num_weights), launches


def _to_real(tensor: torch.Tensor) -> tuple[int, int]:
    """Bytes of the real results of complex numbers as complex ones (``UnaryOps.cpp``), which are copied then."""
    return (int(tensor.nbytes), 2) if tensor.is_complex() else (0, 1)


def _cat_launches(tensors: Sequence[torch.Tensor], *_: Any, more_dims: int = 0, **__: Any) -> int:
    """Launches: one for 128 tensors of one dtype and at most four dimensions, else a copy for each tensor.

    ``cat_out_cuda`` in ``cuda/Shape.cu``.
    """
    tensors = [one for one in tensors if one.numel()]
    if not tensors:
        return 0
    together = 128 if tensors[0].dim() + more_dims <= 4 and len({one.dtype for one in tensors}) == 1 else 1
    return math.ceil(len(tensors) / together)


def _stack_launches(tensors: Sequence[torch.Tensor], dim: int = 0, *_: Any, **__: Any) -> int:
    """Launches of a ``cat``; only behind the last dimension the tensors have one dimension more in it."""
    return _cat_launches(tensors, more_dims=int(dim % (tensors[0].dim() + 1) == tensors[0].dim()))


def _addmm_launches(
    bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *_: Any, beta: float = 1, **__: Any
) -> int:
    """Launches: the product, and a copy of the summand, unless cuBLASLt adds a bias (``cuda/Blas.cpp``)."""
    is_row = beta == 1 and bias.shape == right.shape[1:] and 1 not in right.shape
    return 1 + (beta != 0 and (not is_row or bias.is_complex()))


def _im2col(
    tensor: torch.Tensor, kernel: Sequence[int], dilation: Any, padding: Sequence[int], stride: Any
) -> tuple[int, int]:
    """Bytes of the argument, as which a larger result is allocated first (``cuda/Im2Col.cu``).

    Launches: one for each sample, and a copy for a result that grows.
    """
    places = (
        (size + 2 * more - gap * (wide - 1) - 1) // step + 1
        for size, wide, gap, more, step in zip(tensor.shape[-2:], kernel, dilation, padding, stride, strict=True)
    )
    grows = math.prod((*places, *kernel)) > math.prod(tensor.shape[-2:])
    return tensor.nbytes * grows, (tensor.shape[0] if tensor.dim() == 4 else 1) + grows


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _without_out(keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call's keywords without ``out``: the rules are those of a call that makes its result."""
    return {key: value for key, value in keywords.items() if key != "out"} if "out" in keywords else keywords


_LAUNCH_NOTHING = frozenset(("new_empty", "new_empty_strided", "lift_fresh", "_local_scalar_dense", "record_stream"))

_RULES: dict[str, Callable[..., tuple[int, int]]] = {
    "_embedding_bag_backward": _embedding_bag_backward,
    "abs": _to_real,
    "angle": _to_real,
    "embedding_dense_backward": _embedding_backward,
    # A number that is raised to many powers is made a tensor.
    "pow": lambda base, *_: (0, 1) if isinstance(base, torch.Tensor) else (_INDEX, 2),
    # The gradient times the result: softmax_backward_cuda_out in cuda/SoftMax.cu multiplies first.
    "_softmax_backward_data": lambda grad, *_, **__: (grad.nbytes, 2),
    "_foreach_norm": _foreach_norm,
    "im2col": _im2col,
    **attention.RULES,
    **norms.RULES,
    **sorting.RULES,
}
"""The bytes that an operator's kernels take for a while, and how many there are."""

_MADE_AS_LARGE = ("binary_cross_entropy", "col2im", "soft_margin_loss")
"""The operators whose result is first made in the size of their first argument, and keeps that memory."""
_INTO_ZEROS = ("diag_embed", "diagonal_backward", "select_backward", "slice_backward", "unfold_backward")
"""The operators that make zeros and copy into them."""
_INTO_A_COPY = ("as_strided_scatter", "diagonal_scatter", "put", "select_scatter", "slice_scatter")
"""The operators that copy their first argument and write into the copy."""

_POOLS = (
    *(f"{kind}_pool3d_backward" for kind in ("_adaptive_avg", "adaptive_max")),
    "max_pool3d_with_indices_backward",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "max_unpool2d",
    "max_unpool3d",
    "upsample_linear1d",
    "max_pool2d_with_indices_backward",
    "avg_pool3d_backward",
    "_adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d_backward",
)
_PADDED_BACKWARD = tuple(f"{kind}_pad{dims}d_backward" for kind in ("reflection", "replication") for dims in (1, 2, 3))
_UPSAMPLED_BACKWARD = (
    "upsample_linear1d_backward",
    "upsample_bilinear2d_backward",
    "_upsample_bilinear2d_aa_backward",
    "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward",
)

_LAUNCHES: dict[str, int | Callable[..., int]] = {
    "block_diag": lambda tensors: 1 + len(tensors),
    **dict.fromkeys((*_INTO_ZEROS, *_INTO_A_COPY), 2),
    # One fill; none for an empty tensor, such as a placeholder of autograd or a library.
    **dict.fromkeys(("zeros", "ones", "full"), lambda sizes, *_, **__: int(math.prod(sizes) > 0)),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full"), lambda like, sizes, *_, **__: int(math.prod(sizes) > 0)),
    "cat": _cat_launches,
    "stack": _stack_launches,
    # A fill and a copy; a copy alone if the padding only cuts off (PadNd.cpp).
    "constant_pad_nd": lambda tensor, pad, *_, **__: 2 if any(one > 0 for one in pad) else 1,
    "masked_fill": 2,  # a copy, then filled in place (Indexing.cu)
    **norms.LAUNCHES,
    **dict.fromkeys(("mean", "nansum", "norm", "prod", "sum"), lambda *given, **named: 1 + _converts(*given, **named)),
    "addmm": _addmm_launches,
    **dict.fromkeys(("addmv", "baddbmm"), lambda *_, beta=1, **__: 1 + (beta != 0)),
    # Zeros for the input's gradient, and the kernel.
    **dict.fromkeys(("grid_sampler_2d_backward", "grid_sampler_3d_backward"), lambda *given: 1 + bool(given[-1][0])),
    # Zeros, then a kernel that adds to them.
    **dict.fromkeys(("upsample_bicubic2d", *_POOLS, *_UPSAMPLED_BACKWARD, *_PADDED_BACKWARD), 2),
    "convolution": _convolution_launches,
    "convolution_backward": lambda *given, **__: int(sum(given[-1])),  # one for each gradient; the bias's is a sum
    **sorting.LAUNCHES,
}


class OnCuda(Hidden):
    """The temporary memory and the kernel launches of one operator on CUDA.

    Args:
        gpu: the GPU's multiprocessors and architecture, which decide how a reduction is divided; by default an H100's.
    """

    def __init__(self, gpu: Gpu = MODELLED["h100"]) -> None:
        self._gpu = gpu

    def blocks_of(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the sizes in bytes of the temporary blocks of one call, which are freed within the call, in order.

        ``name`` is the operator's without the overload, ``aten::embedding_dense_backward``; ``args`` and ``kwargs`` are
        those of its dispatch. The number of blocks depends on the operator alone: a block that a call does not need has
        0 bytes. The result is empty if no temporary block of the operator is known.
        """
        name, kwargs = name.removeprefix("aten::"), _without_out(kwargs)
        within = inside(name, args, kwargs, self)
        if within is not None:
            return within.blocks
        copies = copied(name, args, kwargs)
        reduction = _reduction_of(name, args, kwargs)
        if reduction is not None:
            return *copies, *_reduction(reduction, self._gpu, *args, **kwargs)
        if name == "convolution_backward":
            return *copies, _bias_sum(self._gpu, sum(copies), *args, **kwargs)
        if name == "topk":
            return *copies, sorting.topk(self._gpu.sms, *args, **kwargs)
        rule = _RULES.get(name)
        return copies if rule is None else (*copies, rule(*args, **kwargs)[0])

    def least_bytes(self, name: str, args: Sequence[Any]) -> int:
        """Return the bytes of the first operand for an operator whose result was made in its size, and resized."""
        return int(args[0].nbytes) if name.removeprefix("aten::") in _MADE_AS_LARGE else 0

    def on_host(self, name: str) -> tuple[int, ...]:
        """Return the positions of the operator's results that are in the host's memory."""
        return attention.ON_HOST.get(name.removeprefix("aten::"), ())

    def launches_of(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return how many kernels the call launches; copies count as kernels. Views launch none, and do not come here.

        1 for an operator without a rule; 0 for an operator that only allocates memory, or works on the host.
        """
        name, kwargs = name.removeprefix("aten::"), _without_out(kwargs)
        if name.startswith("empty") or name in _LAUNCH_NOTHING:
            return 0
        if name.startswith(_OVER_LISTS) and args and _is_list(args[0]):
            lists = self.lists_of(name, args)
            return lists.launches if lists is not None else 0
        if name == _GROUPED_MM:
            return sorting.grouped_mm_launches(self._gpu.architecture, *args, **kwargs)
        within = inside(name, args, kwargs, self)
        if within is not None:
            return within.launches
        if name in _RULES:
            launches = _RULES[name](*args, **kwargs)[1]
        else:
            rule = _LAUNCHES.get(name, 1)
            launches = rule if isinstance(rule, int) else rule(*args, **kwargs)
        return launches + sum(size > 0 for size in copied(name, args, kwargs))

    def lists_of(self, name: str, args: Sequence[Any]) -> Lists | None:
        """Return the lists that an operator over lists divides into chunks, from which its launches follow.

        None for any other operator, and if all tensors are on the host.
        """
        name = name.removeprefix("aten::")
        if not name.startswith(_OVER_LISTS) or not args or not _is_list(args[0]):
            return None
        tensors = [one for one in args[0] if isinstance(one, torch.Tensor)]
        if tensors and all(on_host(one) for one in tensors):
            return None
        lists = [one for one in args if _is_list(one) and one and isinstance(one[0], torch.Tensor)]
        # An optimizer's step counters are a list that is not divided together with the other lists.
        depth = len(lists) - name.startswith("_fused_") + (not name.endswith("_") and name != "_foreach_norm")
        scalars = any(_is_list(one) and one and isinstance(one[0], int | float) for one in args)
        return Lists(
            tuple(Part(one.numel()) for one in tensors), depth, scalars, 2 * (name == "_foreach_norm" and bool(tensors))
        )


ON_CUDA = OnCuda()
