"""The fused kernels in the configurations that matter, as launches on `meta` tensors: nothing is allocated or run.

Shapes: rows (R, D) of a transformer with D = 128 (a head), 4096, 8192 (a row in one tile) and 12288 (walked over);
vocabularies of 32,000 and 128,256 words. Quantised products of one token (16 rows at least), 32 and 64, 4096 each way.
Selective scans of 8 sequences of 2,048 positions with 4,096 channels.

For whoever compiles ahead of time. The functions that make these launches are those that a GPU's calls go through.
This module imports Triton.
"""

import torch
from torch import Tensor

from perflab.lab.inference.triton_quantised_product import quantised_product_launch
from perflab.lab.kernels.reference import IGNORE_INDEX
from perflab.lab.kernels.triton_cross_entropy import cross_entropy_backward_launch, cross_entropy_launch
from perflab.lab.kernels.triton_partials import sum_partials_launch
from perflab.lab.kernels.triton_rms_norm import backward_partials as rms_norm_partials
from perflab.lab.kernels.triton_rms_norm import rms_norm_backward_launches, rms_norm_launch
from perflab.lab.kernels.triton_swiglu import swiglu_backward_launch, swiglu_launch
from perflab.lab.kernels.triton_weighted_sum import backward_partials as weighted_sum_partials
from perflab.lab.kernels.triton_weighted_sum import weighted_sum_backward_launch, weighted_sum_launch
from perflab.lab.launch import Launch
from perflab.lab.scan.examples import scan_launches

_ROWS = 8192
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def launches(shared_limit_bytes: int) -> dict[str, Launch]:
    """Name -> launch, such as "rms_norm_backward-bf16-4096".

    shared_limit_bytes: what one program may have. These kernels' tiles live in registers and do not depend on it;
    it is here because every room's examples are asked for in the same way.
    """
    found: dict[str, Launch] = {}
    for short, dtype in _DTYPES.items():
        for columns in (128, 4096):
            found |= _named(_weighted_sum(columns, dtype), f"{short}-{columns}")
        for columns in (128, 4096, 8192, 12288):
            found |= _named(_rms_norm(columns, dtype), f"{short}-{columns}")
        found |= _named(_swiglu(11008, dtype), f"{short}-11008")
        for vocab_size in (32_000, 128_256):
            found |= _named(_cross_entropy(vocab_size, dtype), f"{short}-{vocab_size}")
        found |= scan_launches(short, dtype)
        for num_rows in (1, 32, 64):
            found |= _named(_quantised_product(num_rows, 4096, dtype), f"{short}-{num_rows}")
    return found


def _named(launches: dict[str, Launch], configuration: str) -> dict[str, Launch]:
    return {f"{name}-{configuration}": launch for name, launch in launches.items()}


def _meta(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _weighted_sum(columns: int, dtype: torch.dtype) -> dict[str, Launch]:
    x, weight, y = (_meta(*shape, dtype=dtype) for shape in ((_ROWS, columns), (columns,), (_ROWS,)))
    partials = _meta(weighted_sum_partials(_ROWS, columns), columns, dtype=torch.float32)
    return {
        "weighted_sum": weighted_sum_launch(x, weight, y),
        "weighted_sum_backward": weighted_sum_backward_launch(y, x, weight, x, partials),
        "sum_partials": sum_partials_launch(partials, weight),
    }


def _rms_norm(columns: int, dtype: torch.dtype) -> dict[str, Launch]:
    x, weight = _meta(_ROWS, columns, dtype=dtype), _meta(columns, dtype=dtype)
    rstd = _meta(_ROWS, dtype=torch.float32)
    partials = _meta(rms_norm_partials(_ROWS, columns), columns, dtype=torch.float32)
    backward = rms_norm_backward_launches(x, x, weight, rstd, x, partials)
    names = ("rms_norm_backward",) if len(backward) == 1 else ("rms_norm_dx", "rms_norm_d_weight")
    return {"rms_norm": rms_norm_launch(x, weight, x, rstd, 1e-6), **dict(zip(names, backward, strict=True))}


def _swiglu(columns: int, dtype: torch.dtype) -> dict[str, Launch]:
    gate, up = _meta(_ROWS, 2 * columns, dtype=dtype).chunk(2, dim=1)  # as one projection leaves them
    y = _meta(_ROWS, columns, dtype=dtype)
    return {"swiglu": swiglu_launch(gate, up, y), "swiglu_backward": swiglu_backward_launch(y, gate, up, y, y)}


def _cross_entropy(vocab_size: int, dtype: torch.dtype) -> dict[str, Launch]:
    logits, targets = _meta(_ROWS, vocab_size, dtype=dtype), _meta(_ROWS, dtype=torch.int64)
    ends = _meta(_ROWS, dtype=torch.float32)
    d_losses = _meta(1, dtype=torch.float32).expand(_ROWS)  # as a mean or sum hands it over
    return {
        "cross_entropy": cross_entropy_launch(logits, targets, ends, ends, ends, IGNORE_INDEX),
        "cross_entropy_backward": cross_entropy_backward_launch(
            d_losses, logits, targets, ends, ends, logits, IGNORE_INDEX
        ),
    }


def _quantised_product(num_rows: int, width: int, dtype: torch.dtype) -> dict[str, Launch]:
    x, whole = _meta(num_rows, width, dtype=dtype), _meta(width, width, dtype=torch.int8)
    found = {"quantised_product-int8": quantised_product_launch(x, whole, _meta(width, 1, dtype=torch.float32), x, 8)}
    packed = _meta(width, width // 2, dtype=torch.uint8)
    for group_size in (32, 128, 256):
        scales = _meta(width, width // group_size, dtype=torch.float32)
        found[f"quantised_product-int4-{group_size}"] = quantised_product_launch(x, packed, scales, x, 4)
    return found
