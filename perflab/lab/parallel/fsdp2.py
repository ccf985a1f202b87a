"""PyTorch's `fully_shard` (FSDP2) as an exchange: parameters, gradients and AdamW's state in shards (ZeRO stage 3).

Each process keeps some rows of every parameter. A block's parameters are gathered before its forward pass and again
before its backward pass, and let go after each. Its gradients are reduce-scattered as soon as they are there (Zhao et
al. 2023).
"""

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from perflab.lab.parallel.exchange import Exchange, blocks_of


class Fsdp2Exchange(Exchange):
    """Shards each block, and what is left as one more part. The model's parameters are `DTensor`s from then on.

    Raises:
        ValueError: the model has no `blocks`.
    """

    name = "fsdp2"
    keeps_gathered = False
    """Whether a block's parameters stay whole from its forward pass until its backward pass (ZeRO stage 2)."""

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        super().__init__(model, bucket_mb)
        for block in blocks_of(model, self.name, "ddp"):
            fully_shard(block, reshard_after_forward=not self.keeps_gathered)
        self._model: FSDPModule = fully_shard(model)
        # The shards: whoever keeps the parameters from before keeps a whole model in each process.
        self.parameters = [one for one in model.parameters() if one.requires_grad]

    def begin(self, *, last: bool) -> None:
        """Reduce gradients in the last pass alone: until then each process keeps all of them, whole."""
        self._model.set_requires_gradient_sync(last)

    def finish(self) -> None:
        """Do nothing: the backward pass has ended with averaged gradients."""

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients such that their norm is at most `max_norm`; return the norm before, a scalar."""
        return _whole(super().clip(max_norm))

    def whole(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """Gather a parameter's data, its gradient or optimizer state. All processes have to call."""
        del parameter
        return _whole(tensor)

    def part(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """Return this process's rows of a whole tensor. All processes have to call."""
        if tensor.ndim == 0 or not isinstance(parameter, DTensor):
            return tensor
        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)


class Zero2Exchange(Fsdp2Exchange):
    """Gathers parameters once a step: what is in shards in between is gradients and AdamW's state (ZeRO stage 2)."""

    name = "zero2"
    keeps_gathered = True


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
