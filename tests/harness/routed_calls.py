"""Calls of operators whose rules are not those of most, with what PyTorch's CUDA build launched and took for each.

``tests/correctness/test_predicted_against_real.py`` makes them on CUDA, ``test_predicted_cuda_kernels.py`` holds the
rules to them everywhere. Copies on the device count as launches. Bytes are those that are taken in passing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

FP32, BF16, I32, I64 = torch.float32, torch.bfloat16, torch.int32, torch.int64
ATEN = torch.ops.aten
Make = Callable[..., Tensor]


class Call(NamedTuple):
    """One call of an operator."""

    operator: Any
    arguments: Callable[[Make], list[Any]]
    """From a function that makes a tensor of zeros: ``make(*shape, dtype=...)``."""
    launches: int
    hidden_bytes: int
    keywords: dict[str, Any] = {}
    tiles: int = 0
    """Bytes that CUB keeps beside its lists, at the most: they depend on registers."""

    @property
    def name(self) -> str:
        """``aten::sort``."""
        return f"aten::{self.operator.overloadpacket.__name__}"


def rows_added(operator: Any, tokens: int, rows: int, launches: int, hidden_bytes: int, tiles: int = 0) -> Call:
    """``tokens`` rows of 8 added into ``rows`` of them. Autograd, which calls ``_index_put_impl_``, checks nothing."""
    unchecked = [True] if operator is ATEN._index_put_impl_.default else []
    return Call(
        operator,
        lambda make: [make(rows, 8), [make(tokens, dtype=I64)], make(tokens, 8), True, *unchecked],
        launches,
        hidden_bytes,
        tiles=tiles,
    )


def group_norm_backward(size: int, affine: bool, wanted: list[bool], launches: int, hidden_bytes: int) -> Call:
    """Gradients of a group norm of 4 samples with 32 channels of ``size`` elements, in 8 groups."""
    return Call(
        ATEN.native_group_norm_backward.default,
        lambda make: [
            *(make(4, 32, size), make(4, 32, size), make(4, 8), make(4, 8), make(32) if affine else None),
            *(4, 32, size, 8, wanted),
        ],
        launches,
        hidden_bytes,
    )


CALLS = (
    Call(ATEN.sort.default, lambda make: [make(2048, dtype=I64)], 5, 2048 * 8),
    Call(ATEN.sort.default, lambda make: [make(1024, 64)], 5, 64 * 8),
    Call(ATEN.sort.default, lambda make: [make(8, 8192), 0], 5, 8 * 8),
    Call(ATEN.sort.stable, lambda make: [make(4096)], 5, 4096 * 8, {"stable": True}),
    Call(ATEN.sort.default, lambda make: [make(100_000, dtype=I64)], 12, 100_000 * 24, tiles=40_000),
    Call(ATEN.sort.default, lambda make: [make(4097)], 8, 4097 * 20, tiles=11_000),
    Call(ATEN.sort.default, lambda make: [make(8, 8192)], 12, 8 * 8192 * 32, tiles=24_000),
    Call(ATEN.sort.default, lambda make: [make(300, 8192)], 8, 300 * 8192 * 20, tiles=1000),
    Call(ATEN.topk.default, lambda make: [make(1024, 8), 2], 2, 0),
    Call(ATEN.topk.default, lambda make: [make(1024, 8), 1], 1, 0),
    Call(ATEN.topk.default, lambda make: [make(1024, 8), 2, -1, True, False], 1, 0),
    Call(ATEN.topk.default, lambda make: [make(20, 19_999), 4], 2, 0),
    Call(ATEN.topk.default, lambda make: [make(800, 800), 4], 20, 1_251_200, tiles=2048),
    Call(ATEN.topk.default, lambda make: [make(4, 50_000, dtype=BF16), 4], 14, 106_072, tiles=2048),
    Call(ATEN.cumsum.default, lambda make: [make(1024), 0], 2, 0, tiles=1024),
    Call(ATEN.cumsum.default, lambda make: [make(8, dtype=I32), 0], 2, 0, {"dtype": I32}, tiles=1056),
    Call(ATEN.cumsum.default, lambda make: [make(64, 64, dtype=I32), -1], 2, 64 * 64 * 8),
    rows_added(ATEN._index_put_impl_.default, 2048, 64, 6, 2048 * 32 + 1),
    rows_added(ATEN._index_put_impl_.default, 2305, 64, 8, 2305 * 32 + 1, 4000),
    rows_added(ATEN._index_put_impl_.default, 5000, 257, 9, 5000 * 48 + 1, 8000),
    rows_added(ATEN.index_put_.default, 64, 64, 11, 64 * 32 + 1),
    rows_added(ATEN.index_put.default, 64, 64, 12, 64 * 32 + 1),
    Call(ATEN.index_put_.default, lambda make: [make(64, 8), [make(64, dtype=I64)], make(64, 8)], 1, 0),
    Call(ATEN.index_put.default, lambda make: [make(64, 8), [make(64, dtype=I64)], make(64, 8)], 2, 0),
    Call(ATEN.histc.default, lambda make: [make(2048, dtype=I32), 8, 0, 7], 2, 0),
    Call(ATEN.histc.default, lambda make: [make(2048, dtype=I32), 8], 3, 2 * 4),
    Call(ATEN.histc.default, lambda make: [make(0, dtype=I32), 8, 0, 7], 1, 0),
    Call(ATEN.bincount.default, lambda make: [make(2048, dtype=I64), None, 8], 3, 2 * 8),
    Call(ATEN.bincount.default, lambda make: [make(64, dtype=I64), make(64, dtype=BF16), 8], 4, 2 * 8 + 64 * 8),
    Call(ATEN.bincount.default, lambda make: [make(0, dtype=I64), None, 8], 1, 0),
    Call(ATEN.scatter.value, lambda make: [make(64, 8), 1, make(64, 2, dtype=I64), 1.0], 2, 0),
    Call(ATEN.scatter_add.default, lambda make: [make(64, 8), 1, make(64, 2, dtype=I64), make(64, 2)], 2, 0),
    Call(ATEN.index_add.default, lambda make: [make(64, 8), 0, make(9, dtype=I64), make(9, 8)], 2, 0),
    Call(ATEN.zeros.default, lambda make: [[0]], 0, 0, {"device": "cuda"}),
    Call(ATEN.new_zeros.default, lambda make: [make(4), [3, 0]], 0, 0),
    Call(ATEN.slice_backward.default, lambda make: [make(4, 2), [4, 8], 1, 0, 2, 1], 2, 0),
    Call(ATEN.embedding.default, lambda make: [make(9, 64), make(8, dtype=I64).expand(2, 8)], 2, 2 * 8 * 8),
    Call(
        ATEN.embedding_dense_backward.default,
        lambda make: [make(2, 8, 64), make(8, dtype=I64).expand(2, 8), 9, -1, False],
        3,
        2 * 8 * 8,
    ),
    Call(
        ATEN.convolution.default,  # each channel by itself, of an input with the channels last
        lambda make: [*(make(2, 64, 16).transpose(1, 2), make(16, 1, 4), make(16)), *([1], [3], [1], False, [0], 16)],
        2,
        2 * 64 * 16 * 4,
    ),
    # Operands that a kernel wants in another layout are copied.
    Call(ATEN._log_softmax.default, lambda make: [make(256, 300).T, 1, False], 2, 256 * 300 * 4),
    Call(
        ATEN._softmax_backward_data.default,
        lambda make: [make(256, 300).T, make(256, 300).T, 1, FP32],
        4,
        3 * 256 * 300 * 4,
    ),
    Call(
        ATEN.native_layer_norm.default,
        lambda make: [make(8, 64, 32).mT, [64], make(64), make(64), 1e-5],
        2,
        8 * 64 * 32 * 4,
    ),
    Call(
        ATEN.native_layer_norm_backward.default,
        lambda make: [
            *(make(64, 8, 32).transpose(0, 1), make(8, 64, 32), [32], make(8, 64, 1), make(8, 64, 1)),
            *(make(32), make(32), [True, False, False]),
        ],
        2,
        8 * 64 * 32 * 4,
    ),
    Call(ATEN.mm.default, lambda make: [make(1, 1).expand(64, 1), make(1, 32)], 2, 64 * 4),
    Call(ATEN.mm.default, lambda make: [make(64, 64)[:, ::2], make(32, 16)], 2, 64 * 32 * 4),
    Call(ATEN.mm.default, lambda make: [make(64, 64)[:, :32], make(32, 16).T.contiguous().T], 1, 0),
    Call(ATEN.bmm.default, lambda make: [make(64, 4, 32).transpose(0, 1), make(4, 32, 16)], 1, 0),
    Call(
        ATEN.convolution.default,  # a 1x1 weight, contiguous as well, whose strides say that channels come last
        lambda make: [
            *(make(4, 32, 16, 16), make(8, 32, 1, 1).to(memory_format=torch.channels_last), None),
            *([1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ],
        2,
        4 * 32 * 16 * 16 * 4,
    ),
    Call(
        ATEN.convolution_backward.default,  # the sum for the bias takes more than the copied gradient
        lambda make: [
            make(8, 256, 16, 16, dtype=BF16).to(memory_format=torch.channels_last),
            *(make(8, 4, 16, 16, dtype=BF16), make(256, 4, 1, 1, dtype=BF16), [256]),
            *([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]),
        ],
        3,
        4_194_312,
    ),
    Call(
        ATEN.max_pool2d_with_indices_backward.default,
        lambda make: [
            *(make(2, 32, 4, 4).to(memory_format=torch.channels_last), make(2, 32, 8, 8), [2, 2], []),
            *([0, 0], [1, 1], False, make(2, 32, 4, 4, dtype=I64)),
        ],
        3,
        2 * 32 * 4 * 4 * 4,
    ),
    Call(
        ATEN.index_put.default,
        lambda make: [make(2000, 128), [make(100, dtype=I64)], make(100, 256)[:, :128], True],
        13,
        100 * 32 + 1 + 100 * 128 * 4,
    ),
    Call(ATEN.sum.default, lambda make: [make(64, dtype=torch.bool)], 2, 64 * 8),
    Call(ATEN.stack.default, lambda make: [[make(4, 5, 6, 7)] * 3], 1, 0),
    Call(ATEN.stack.default, lambda make: [[make(4, 5, 6, 7)] * 3, 4], 3, 0),
    # Norms, losses, and products with a summand.
    Call(
        ATEN.native_group_norm.default,
        lambda make: [make(4, 32, 16, 16), make(32), make(32), 4, 32, 256, 8, 1e-5],
        3,
        2 * 4 * 32 * 4,
    ),
    Call(
        ATEN.native_group_norm.default,
        lambda make: [make(4, 32, 16, 16, dtype=BF16), *[make(32, dtype=BF16)] * 2, 4, 32, 256, 8, 1e-5],
        3,
        2 * 4 * (32 + 8) * 4,
    ),
    Call(
        ATEN.native_group_norm_backward.default,
        lambda make: [
            *(make(4, 32, 16, 16), make(4, 32, 16, 16), make(4, 8), make(4, 8), make(32)),
            *(4, 32, 256, 8, [True, True, True]),
        ],
        5,
        4 * (3 * 32 + 2 * 8) * 4,
    ),
    Call(ATEN.binary_cross_entropy_with_logits.default, lambda make: [make(4096), make(4096)], 6, 2 * 4096 * 4),
    Call(
        ATEN.binary_cross_entropy_with_logits.default,
        lambda make: [make(4096), make(4096), None, make(4096)],
        10,
        3 * 4096 * 4 - 4,
    ),
    Call(ATEN.mse_loss.default, lambda make: [make(4096), make(4096)], 2, 4096 * 4),
    Call(ATEN.mse_loss.default, lambda make: [make(4096), make(4096), 0], 1, 0),
    Call(ATEN.nll_loss2d_forward.default, lambda make: [make(4, 2, 8, 8), make(4, 8, 8, dtype=I64), None, 1, 0], 4, 0),
    Call(ATEN.logsumexp.default, lambda make: [make(512, 16), [-1]], 9, 512 * 17 * 4),
    Call(ATEN.addmm.default, lambda make: [make(16), make(64, 32), make(32, 16)], 1, 0),
    Call(ATEN.addmm.default, lambda make: [make(1), make(64, 32), make(32, 1)], 2, 0),
    Call(ATEN.addmm.default, lambda make: [make(64, 16), make(64, 32), make(32, 16)], 2, 0),
    Call(ATEN._foreach_norm.Scalar, lambda make: [[make(64)] * 4, 2.0], 3, 4 * 4),
    Call(ATEN.addmm.default, lambda make: [make(16), make(64, 32), make(32, 16)], 1, 0, {"alpha": 2}),
    Call(ATEN.addmm.default, lambda make: [make(16), make(64, 32), make(32, 16)], 2, 0, {"alpha": 2, "beta": 0.5}),
    Call(ATEN.addmm.default, lambda make: [make(16), make(1, 32), make(32, 16)], 1, 0),
    Call(ATEN.addmm.default, lambda make: [make(1), make(64, 32), make(32, 16)], 2, 0),
    Call(
        ATEN.addmm.default,
        lambda make: [make(*shape, dtype=torch.complex64) for shape in ((16,), (64, 32), (32, 16))],
        2,
        0,
    ),
    Call(ATEN.sum.default, lambda make: [make(64, dtype=torch.complex64)], 1, 0),
    *(
        group_norm_backward(size, affine, wanted, launches, hidden_bytes)
        for size, affine, wanted, launches, hidden_bytes in (
            (256, True, [True, False, False], 4, 1792),
            (256, False, [True, False, False], 3, 1280),
            (256, True, [False, True, True], 2, 1024),
            (1, True, [True, True, True], 3, 1280),
            (1, True, [False, True, True], 1, 1024),
        )
    ),
    Call(
        ATEN._softmax_backward_data.default,
        lambda make: [make(64, 1).expand(64, 32), make(64, 32), -1, FP32],
        2,
        64 * 32 * 4,
    ),
    Call(
        ATEN._softmax_backward_data.default,
        lambda make: [make(32, 64).t(), make(32, 64).t(), -1, FP32],
        4,
        3 * 64 * 32 * 4,
    ),
    Call(
        ATEN.nll_loss2d_forward.default,
        lambda make: [make(4, 8, 8, 2).permute(0, 3, 1, 2), make(4, 8, 8, dtype=I64), None, 0, 0],
        2,
        0,
    ),
    Call(ATEN.nll_loss2d_forward.default, lambda make: [make(4, 2, 8, 8), make(4, 8, 8, dtype=I64), None, 2, 0], 3, 0),
    Call(ATEN.binary_cross_entropy.default, lambda make: [make(64), make(64), None, 0], 1, 0),
    Call(ATEN.binary_cross_entropy_backward.default, lambda make: [make(1)[0], *[make(64)] * 3, 1], 3, 0),
    Call(ATEN.binary_cross_entropy_backward.default, lambda make: [make(1)[0], make(64), make(64), None, 2], 1, 0),
    # Operators that call others, reductions, and operands that are made contiguous.
    Call(ATEN.multinomial.default, lambda make: [make(8, 1000), 1], 13, 32010),
    Call(ATEN.multinomial.default, lambda make: [make(8, 1000), 4], 14, 32138),
    Call(ATEN.multinomial.default, lambda make: [make(8, 1000), 4, True], 5, 96000),
    Call(ATEN.topk.default, lambda make: [make(1000, 16).T, 5], 3, 64000),
    Call(ATEN.roll.default, lambda make: [make(4, 8, 16), [1, 2, 3], [0, 1, 2]], 3, 4096),
    Call(ATEN.randperm.default, lambda make: [1000], 5, 16000, {"device": "cuda"}, tiles=1),
    Call(ATEN.im2col.default, lambda make: [make(2, 8, 32, 32), [3, 3], [1, 1], [1, 1], [1, 1]], 3, 65536),
    Call(ATEN.im2col.default, lambda make: [make(2, 8, 32, 32), [3, 3], [1, 1], [0, 0], [4, 4]], 2, 0),
    Call(ATEN._cdist_forward.default, lambda make: [make(3, 64, 32), make(3, 128, 32), 2.0, None], 12, 78336),
    Call(
        ATEN._cdist_backward.default,
        lambda make: [make(64, 128), make(64, 32), make(128, 32), 2.0, make(64, 128)],
        2,
        1048576,
    ),
    Call(ATEN._fft_c2r.default, lambda make: [make(4, 8, 33, dtype=torch.complex64), [2], 2, 64], 3, 8448),
    Call(ATEN._fft_r2c.default, lambda make: [make(4, 8, 64), [1], 0, True], 2, 8192),
    Call(ATEN._fft_r2c.default, lambda make: [make(4, 8, 64), [2], 0, False], 2, 0),
    Call(ATEN.abs.default, lambda make: [make(64, dtype=torch.complex64)], 2, 512),
    Call(ATEN.isfinite.default, lambda make: [make(64)], 4, 384),
    Call(ATEN.isfinite.default, lambda make: [make(64, dtype=I64)], 1, 0),
    Call(ATEN.isfinite.default, lambda make: [make(64, dtype=torch.complex64)], 9, 448),
    Call(ATEN.isinf.default, lambda make: [make(64)], 2, 256),
    Call(ATEN.isinf.default, lambda make: [make(64, dtype=I64)], 1, 0),
    Call(ATEN.isinf.default, lambda make: [make(64, dtype=torch.complex64)], 5, 320),
    Call(ATEN.count_nonzero.default, lambda make: [make(64, 64, dtype=torch.bool)], 2, 64 * 64 * 8),
    Call(ATEN.count_nonzero.dim_IntList, lambda make: [make(64, 64, dtype=torch.bool), [0]], 2, 64 * 64 * 8),
    Call(ATEN.count_nonzero.default, lambda make: [make(4096, 4096)], 3, 150999172),
    Call(ATEN.logsumexp.default, lambda make: [make(4096, 64), [0]], 9, 1573124),
    Call(ATEN.logsumexp.default, lambda make: [make(64, dtype=I64), [0]], 10, 516),
    Call(ATEN.logsumexp.default, lambda make: [make(4, 0), [1]], 2, 0),
    Call(ATEN.logsumexp.default, lambda make: [make(0, 4), [1]], 0, 0),
    Call(ATEN.max.dim, lambda make: [make(4096, 64), 0], 1, 2097156),
    Call(ATEN.std.correction, lambda make: [make(4096, 64), [0]], 1, 2097156),
    Call(ATEN.argmax.default, lambda make: [make(64, 8, 8).transpose(1, 2)], 2, 16384),
    Call(ATEN._safe_softmax.default, lambda make: [make(8, 64), -1], 5, 524),
    Call(ATEN.addbmm.default, lambda make: [make(5, 10), make(4, 5, 6), make(4, 6, 10)], 5, 0),
    Call(ATEN.addbmm.default, lambda make: [make(10), make(4, 5, 6), make(4, 6, 10)], 4, 0, {"beta": 0}),
    Call(ATEN.addbmm.default, lambda make: [make(5, 10), make(0, 5, 6), make(0, 6, 10)], 2, 0),
    Call(ATEN.addbmm_.default, lambda make: [make(5, 10), make(4, 5, 6), make(4, 6, 10)], 4, 0),
    Call(ATEN.addbmm_.default, lambda make: [make(10, 5).T, make(4, 5, 6), make(4, 6, 10)], 4, 0),
    Call(ATEN.block_diag.default, lambda make: [[make(3, 3)] * 4], 5, 0),
    Call(ATEN.pow.Scalar, lambda make: [2.0, make(64)], 2, 8),
    Call(ATEN.diagonal_backward.default, lambda make: [make(4), [4, 4], 0, 0, 1], 2, 0),
    Call(ATEN.select_scatter.default, lambda make: [make(4, 8), make(8), 0, 1], 2, 0),
    Call(
        ATEN.grid_sampler_2d_backward.default,
        lambda make: [make(2, 8, 4, 4), make(2, 8, 8, 8), make(2, 4, 4, 2), 0, 0, False, [True, True]],
        2,
        0,
    ),
    Call(
        ATEN.reflection_pad2d_backward.default,
        lambda make: [make(2, 8, 4, 4).mT, make(2, 8, 2, 2), [1, 1, 1, 1]],
        3,
        1024,
    ),
    Call(
        ATEN.upsample_nearest2d_backward.default,
        lambda make: [make(2, 8, 8, 16)[..., ::2], [8, 8], [2, 8, 4, 4]],
        2,
        4096,
    ),
    Call(
        ATEN.upsample_nearest2d_backward.default,
        lambda make: [make(2, 8, 8, 8).to(memory_format=torch.channels_last), [8, 8], [2, 8, 4, 4]],
        1,
        0,
    ),
    Call(ATEN.native_batch_norm.default, lambda make: [make(4, 8), *[make(8)] * 4, True, 0.1, 1e-5], 3, 0),
    Call(
        ATEN.native_batch_norm.default, lambda make: [make(4, 8, 6, dtype=BF16), *[make(8)] * 4, True, 0.1, 1e-5], 3, 0
    ),
    Call(ATEN.soft_margin_loss.default, lambda make: [make(64, 64), make(64, 64)], 6, 4),
    Call(ATEN.soft_margin_loss_backward.default, lambda make: [make(1)[0], make(64, 64), make(64, 64), 1], 8, 32768),
    Call(ATEN.binary_cross_entropy.default, lambda make: [make(64, 64), make(64, 64)], 3, 4),
    Call(ATEN.mse_loss.default, lambda make: [make(2048, 2048), make(2048, 2048)], 2, 16779268),
)
