"""In which precision a model is trained: what the weights are kept in, and what matrix products work in.

    name       weights    products                                       loss scaling
    fp32       float32    float32
    tf32       float32    TensorFloat-32 where the device has it
    fp16       float32    float16, by autocast                           yes
    bf16       float32    bfloat16, by autocast
    pure-bf16  bfloat16   bfloat16

Gradients and AdamW's moments have the weights' dtype. TensorFloat-32 rounds the inputs of a float32 product to 10 bits
of mantissa, the sum stays float32; on a CPU it changes nothing, or next to nothing. float16 has 5 bits of exponent, so
small gradients vanish unless the loss is scaled up first (Micikevicius et al. 2018, section 3.2); how it is scaled is
`step.py`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn


@dataclass(frozen=True)
class Precision:
    """One way to train.

    weights       dtype that parameters are kept in
    autocast      dtype of `torch.autocast` around the forward pass; None: without
    matmul        `torch.set_float32_matmul_precision`: of float32 products, forward and backward
    loss_scaling  whether gradients need a scaled loss to be held in their dtype
    """

    weights: torch.dtype
    autocast: torch.dtype | None = None
    matmul: Literal["highest", "high"] = "highest"
    loss_scaling: bool = False

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model itself, its floating-point weights (and then its buffers too) cast in place where they differ."""
        dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
        return model if dtypes <= {self.weights} else model.to(self.weights)

    @contextmanager
    def applied(self, device_type: str) -> Iterator[None]:
        """Apply autocast, if any, and the precision of products to a forward pass on "cpu" or "cuda"; restore both."""
        autocast = torch.autocast(device_type, dtype=self.autocast, enabled=self.autocast is not None)
        with self.products_applied(), autocast:
            yield

    @contextmanager
    def products_applied(self) -> Iterator[None]:
        """Apply the precision of float32 products to a backward pass. Autograd knows what the forward pass cast."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.matmul)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "fp32": Precision(torch.float32),
        "tf32": Precision(torch.float32, matmul="high"),
        "fp16": Precision(torch.float32, autocast=torch.float16, loss_scaling=True),
        "bf16": Precision(torch.float32, autocast=torch.bfloat16),
        "pure-bf16": Precision(torch.bfloat16),
    }
)
"""The precisions of training, by name."""
