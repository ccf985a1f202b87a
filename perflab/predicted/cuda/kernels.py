"""Temporary memory of CUDA kernels, and launches per operator, which a trace of operators does not show.

The rules follow PyTorch's sources; file names are relative to ``aten/src/ATen/native``. Bytes are as requested,
unrounded, at the peak within the call. Families of operators have modules of their own (``attention_kernels``,
``sorting``, ``reductions``). Left out: cuBLAS's workspace, and cuDNN's for convolutions, whose size is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from perflab.internals.of_torch.dispatch import aten
from perflab.predicted.cuda import attention_kernels, sorting
from perflab.predicted.cuda.attention_kernels import ON_HOST
from perflab.predicted.cuda.devices import on_host
from perflab.predicted.cuda.reductions import Processor, staging
from perflab.predicted.data_sheets import Gpu
from perflab.predicted.trace.operators import Hidden
from perflab.predicted.trace.trace import CHUNK, Lists, Part


def _laid_out_anew(tensor: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
    """Return the operands that a convolution copies (``Convolution.cpp``) so that all have one memory format.

    The format is channels-last if the input or the weight (the first two arguments) has it, else contiguous.
    """
    last = torch.channels_last
    by_channels = tensor.dim() == 4 and any(
        one.is_contiguous(memory_format=last) and not one.is_contiguous() for one in (tensor, weight)
    )
    wanted = last if by_channels else torch.contiguous_format
    return [one for one in (tensor, weight, *others) if not one.is_contiguous(memory_format=wanted)]


def _convolution(tensor: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    """Bytes of the copied operands: a lower bound, since the size of cuDNN's workspace is unknown."""
    return sum(one.nbytes for one in _laid_out_anew(tensor, weight))


def _convolution_backward(grad: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    return sum(one.nbytes for one in _laid_out_anew(tensor, weight, grad))


def _convolution_launches(
    tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any, **__: Any
) -> int:
    """Launches: cuDNN's kernel, copies of operands, and the addition of the bias.

    A depthwise convolution adds the bias in its own kernel.
    """
    by_channel = 1 < rest[5] == tensor.shape[1]
    return 1 + len(_laid_out_anew(tensor, weight)) + (bias is not None and not by_channel)


def _convolution_backward_launches(
    grad: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, *rest: Any, **__: Any
) -> int:
    """Launches: one kernel for each requested gradient (the bias's is a sum), and copies of operands."""
    return int(sum(rest[-1])) + len(_laid_out_anew(tensor, weight, grad))


_FLOAT32 = 4
_INDEX = 8

H100 = Processor(132, 90)
_GROUPED_MM = "_grouped_mm"
"""An operator that launches one kernel or many, depending on the GPU."""
_OVER_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")


def check_operators() -> None:
    """Check that PyTorch still has the operators of these tables under their names.

    A renamed operator would count without temporary memory and with one launch.

    Raises:
        InternalsError: PyTorch does not have one of the operators.
    """
    for name in sorted({*_HIDDEN, *_REDUCTIONS, *ON_HOST, *_LAUNCHES, *_LAUNCH_NOTHING, _GROUPED_MM}):
        aten(name, "know what its kernel takes in passing")


def _embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> int:
    """Bytes of the contiguous copy of expanded indices, such as a batch's positions; 0 for contiguous indices."""
    return 0 if indices.is_contiguous() else indices.nbytes


def _embedding_backward(grad: torch.Tensor, indices: torch.Tensor, num_weights: int, *rest: Any, **__: Any) -> int:
    """Bytes of the copy of expanded indices, and above 3072 tokens of sorted tokens and partial sums.

    ``cuda/Embedding.cu`` and ``cuda/EmbeddingBackwardKernel.cu``. Partial sums are one row of float32 for every 10
    tokens, and one more for every row of the weight that may occur. ``scale_grad_by_freq`` sorts fewer tokens too.
    """
    tokens, copied = indices.numel(), _embedding(grad, indices)
    if tokens <= 3072 and not (len(rest) > 1 and rest[1]):
        return copied
    segments = min(tokens, num_weights)
    parts = tokens // 10 + segments
    numbers = (3 * tokens + 2 * segments + parts) * indices.element_size()
    return int(copied + numbers + parts * grad.shape[-1] * max(grad.element_size(), _FLOAT32) + 2 * _INDEX)


def _foreach_norm(tensors: Sequence[torch.Tensor], *_: Any, **__: Any) -> int:
    """Bytes of one float32 (or wider) per tensor and chunk of the largest tensor: ``cuda/ForeachReduceOp.cu``."""
    if not tensors or on_host(tensors[0]):
        return 0
    most = max(math.ceil(one.numel() / CHUNK) for one in tensors)
    return len(tensors) * most * max(_FLOAT32, tensors[0].element_size())


def _softmax_backward(grad: torch.Tensor, *_: Any, **__: Any) -> int:
    """Bytes of the gradient times the result: ``softmax_backward_cuda_out`` in ``cuda/SoftMax.cu`` multiplies first."""
    return grad.nbytes


def _reduction(
    dims_at: int | None, gpu: Processor, tensor: torch.Tensor, *arguments: Any, **keywords: Any
) -> tuple[int, ...]:
    """Return the sizes in bytes of a reduction's two staging blocks.

    ``dims_at`` is the position, after the tensor, of the argument that names the dimensions; None: there is no such
    argument.
    """
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
"""The operators that use ``cuda/Reduce.cuh``, with the position of the argument for dimensions after the tensor."""

_HIDDEN: dict[str, Callable[..., int]] = {
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "_softmax_backward_data": _softmax_backward,
    "_foreach_norm": _foreach_norm,
    **attention_kernels.HIDDEN,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **sorting.HIDDEN,
}


def _embedding_launches(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> int:
    """Launches: one kernel, and one more to copy expanded indices."""
    return 1 + (not indices.is_contiguous())


def _embedding_backward_launches(grad: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> int:
    """Launches: zeros and one kernel; above 3072 tokens about 15, for a sort in passes, segments, and sums.

    One more to copy expanded indices.
    """
    return (2 if indices.numel() <= 3072 else 15) + (not indices.is_contiguous())


def _filled_launches(sizes: Sequence[int], *_: Any, **__: Any) -> int:
    """Launches: one fill; none for an empty tensor, such as a placeholder of autograd or a library."""
    return int(math.prod(sizes) > 0)


def _new_filled_launches(like: torch.Tensor, sizes: Sequence[int], *_: Any, **__: Any) -> int:
    return _filled_launches(sizes)


def _cat_launches(tensors: Sequence[torch.Tensor], *_: Any, more_dims: int = 0, **__: Any) -> int:
    """Launches: one for 128 tensors of one dtype and at most four dimensions, else a copy for each tensor.

    ``cat_out_cuda`` in ``cuda/Shape.cu``.
    """
    tensors = [one for one in tensors if one.numel()]
    if not tensors:
        return 0
    together = 128 if tensors[0].dim() + more_dims <= 4 and len({one.dtype for one in tensors}) == 1 else 1
    return math.ceil(len(tensors) / together)


def _stack_launches(tensors: Sequence[torch.Tensor], *_: Any, **__: Any) -> int:
    """Launches of a ``cat`` of tensors that each have one dimension more."""
    return _cat_launches(tensors, more_dims=1)


def _pad_launches(tensor: torch.Tensor, pad: Sequence[int], *_: Any, **__: Any) -> int:
    """Launches: a fill and a copy; a copy alone if the padding only cuts off (``PadNd.cpp``)."""
    return 2 if any(one > 0 for one in pad) else 1


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
    "convolution": _convolution_launches,
    "convolution_backward": _convolution_backward_launches,
    **sorting.LAUNCHES,
}


class OnCuda(Hidden):
    """The temporary memory and the kernel launches of one operator on CUDA.

    Args:
        gpu: the GPU's multiprocessors and architecture, which decide how a reduction is divided; by default an H100's.
    """

    def __init__(self, gpu: Processor = H100) -> None:
        self._gpu = gpu

    def on(self, gpu: Gpu) -> OnCuda:
        """Return an ``OnCuda`` for the given GPU."""
        return OnCuda(Processor(gpu.sms, gpu.architecture))

    def blocks_of(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the sizes in bytes of the temporary blocks of one call, which are freed within the call, in order.

        ``name`` is the operator's without the overload, ``aten::embedding_dense_backward``; ``args`` and ``kwargs`` are
        those of its dispatch. The number of blocks depends on the operator alone: a block that a call does not need has
        0 bytes. The result is empty if no temporary block of the operator is known.
        """
        name = name.removeprefix("aten::")
        reduces = _REDUCTIONS.get(name)
        if reduces is not None:
            return _reduction(reduces, self._gpu, *args, **kwargs)
        rule = _HIDDEN.get(name)
        return () if rule is None else (rule(*args, **kwargs),)

    def on_host(self, name: str) -> tuple[int, ...]:
        """Return the positions of the operator's results that are in the host's memory."""
        return ON_HOST.get(name.removeprefix("aten::"), ())

    def launches_of(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return how many kernels the call launches; copies count as kernels. Views launch none, and do not come here.

        1 for an operator without a rule; 0 for an operator that only allocates memory, or works on the host.
        """
        name = name.removeprefix("aten::")
        if name.startswith("empty") or name in _LAUNCH_NOTHING:
            return 0
        if name.startswith(_OVER_LISTS) and args and _is_list(args[0]):
            lists = self.lists_of(name, args)
            return lists.launches if lists is not None else 0
        if name == _GROUPED_MM:
            return sorting.grouped_mm_launches(self._gpu.architecture, *args, **kwargs)
        rule = _LAUNCHES.get(name, 1)
        return rule if isinstance(rule, int) else rule(*args, **kwargs)

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
        return Lists(tuple(Part(one.numel()) for one in tensors), depth, scalars, int(name == "_foreach_norm"))


ON_CUDA = OnCuda()
