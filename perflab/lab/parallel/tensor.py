"""Tensor parallelism of the feed-forward's two products (Shoeybi et al. 2019, section 3).

All processes have the same batch. Each of W has 1 / W of the feed-forward's units: rows of `up` (and `gate`), and the
same columns of `down`. What a process computes from its units is a part of a sum over all units:

    y = W_down a(W_up x) = sum over r of  W_down[:, r] a(W_up[r, :] x)       one all-reduce of y in the forward pass
    dx                   = sum over r of  its own                            one all-reduce of dx in the backward pass

so a block exchanges activations twice a step, 4 B T d bytes each in float32, and no gradient: those of a process's
units are complete, and what is not split has the same gradient in every process.

    memory of one process, float32, N parameters, S of them in feed-forwards:  16 N -> 16 (N - S) + 16 S / W
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn

from perflab.lab.parallel.exchange import Exchange, blocks_of

_SPLIT = {"gate": 0, "up": 0, "down": 1}
"""The dimension in which the weight of each product of a feed-forward is split: its units are rows, or columns."""


class _Copied(torch.autograd.Function):
    """The input of all processes' parts: as it is; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(summed)
        return summed


class _Summed(torch.autograd.Function):
    """The sum of all processes' parts; each part's gradient is the sum's."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        summed = part.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def _copied(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    x: Tensor = _Copied.apply(inputs[0])  # type: ignore[no-untyped-call]
    return x


def _summed(_layer: nn.Module, _inputs: object, out: Tensor) -> Tensor:
    summed: Tensor = _Summed.apply(out)  # type: ignore[no-untyped-call]
    return summed


class TensorExchange(Exchange):
    """Splits the feed-forward of every block; its weights are this process's part of them from then on.

    All processes have to be given the same batch: nothing checks it.

    Raises:
        ValueError: the model has no `blocks`; a block has no feed-forward of `up` and `down` without biases, or one
            whose units cannot be shared evenly.
    """

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        super().__init__(model, bucket_mb)
        self._split: dict[nn.Parameter, int] = {}
        for number, block in enumerate(blocks_of(model, "tensor", "flat")):
            layer = getattr(block, "feed_forward", None)
            if not isinstance(layer, nn.Module) or {"up", "down"} - dict(layer.named_children()).keys():
                raise ValueError(
                    f"exchange='tensor' splits a feed-forward of `up` and `down`, and block {number} has none; give "
                    "exchange='zero3'"
                )
            self._divide(layer, f"blocks.{number}.feed_forward")

    def _divide(self, layer: nn.Module, name: str) -> None:
        for product, dim in _SPLIT.items():
            linear = getattr(layer, product, None)
            if linear is None:
                continue
            units = linear.weight.shape[dim]
            if linear.bias is not None:
                raise ValueError(
                    f"exchange='tensor': {name}.{product} has a bias, which would be added in every process"
                )
            if units % self.world_size:
                raise ValueError(
                    f"exchange='tensor': {self.world_size} processes cannot share the {units} units of {name} evenly; "
                    "give a `d_ff` that they divide, or exchange='zero3'"
                )
            self._split[linear.weight] = dim
            linear.weight.data = self.part(linear.weight, linear.weight.data)
        layer.register_forward_pre_hook(_copied)
        layer.register_forward_hook(_summed)

    def finish(self) -> None:
        """Do nothing: every gradient is that of the whole batch."""

    def weight(self, num_tokens: int) -> Tensor:
        """Return 1: all processes have the same tokens."""
        del num_tokens
        return torch.ones((), device=self.parameters[0].device)

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients such that their norm over all processes is at most `max_norm`; return the norm before."""
        split = [one.grad for one in self.parameters if one in self._split and one.grad is not None]
        others = [one.grad for one in self.parameters if one not in self._split and one.grad is not None]
        square = nn.utils.get_total_norm(split).square()
        distributed.all_reduce(square)
        norm = (square + nn.utils.get_total_norm(others).square()).sqrt()
        nn.utils.clip_grads_with_norm_(self.parameters, max_norm, norm)
        return norm

    def whole(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """Gather a parameter's data, its gradient or optimizer state if it is split. All processes have to call."""
        if tensor.ndim == 0 or parameter not in self._split:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        distributed.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, self._split[parameter])

    def part(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """Return this process's part of a whole tensor."""
        if tensor.ndim == 0 or parameter not in self._split:
            return tensor
        return tensor.chunk(self.world_size, self._split[parameter])[distributed.get_rank()].clone()
