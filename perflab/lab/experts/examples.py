"""The grouped products in the configurations that matter, as launches on `meta` tensors: nothing is allocated or run.

Shapes: 8192 rows; 8 experts of 4096 x 14336, and 64 of 2048 x 1408, as published mixtures have them.

For whoever compiles ahead of time. The functions that make these launches are those that a GPU's calls go through.
This module imports Triton.
"""

import torch

from perflab.lab.experts.triton_grouped import grouped_gradient_launch, grouped_product_launch
from perflab.lab.launch import Launch

_ROWS = 8192
_SHAPES = ((8, 4096, 14336), (64, 2048, 1408))
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def launches(shared_limit_bytes: int) -> dict[str, Launch]:
    """Name -> launch, such as "grouped_product-bf16-8"; the kernels' tiles are far below the limit of shared memory."""
    found: dict[str, Launch] = {}
    for short, dtype in _DTYPES.items():
        for num_experts, depth, width in _SHAPES:
            x, y, weight = (
                torch.empty(shape, dtype=dtype, device="meta")
                for shape in ((_ROWS, depth), (_ROWS, width), (num_experts, depth, width))
            )
            ends = torch.empty(num_experts, dtype=torch.int32, device="meta")
            found |= {
                f"grouped_product-{short}-{num_experts}": grouped_product_launch(x, weight, ends, y),
                f"grouped_product_dx-{short}-{num_experts}": grouped_product_launch(y, weight.mT, ends, x),
                f"grouped_gradient-{short}-{num_experts}": grouped_gradient_launch(x, y, ends, weight),
            }
    return found
