"""The base of all exchanges of gradients between processes, and their registry.

    exchange = make_exchange("bucketed", model, bucket_mb=25.0)
    for part in range(parts):
        exchange.begin(last=part == parts - 1)          # before each forward pass
        (loss * exchange.weight(tokens.numel()) / parts).backward()
    exchange.finish()                                   # every gradient is now that of all processes

Nothing is exchanged before the last backward pass of a step: gradients of earlier micro-batches only add up.

A parameter that no process used in a step keeps no gradient, as in one process: AdamW would decay it otherwise. One
that some process used has a gradient in all. Which these are is found by one more small all-reduce a step.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn

EXCHANGES = {
    "naive": "perflab.lab.parallel.naive:NaiveExchange",
    "flat": "perflab.lab.parallel.flat:FlatExchange",
    "overlapped": "perflab.lab.parallel.bucketed:OverlappedExchange",
    "bucketed": "perflab.lab.parallel.bucketed:BucketedExchange",
    "ddp": "perflab.lab.parallel.ddp:DdpExchange",
    "fsdp2": "perflab.lab.parallel.fsdp2:Fsdp2Exchange",
    "zero2": "perflab.lab.parallel.fsdp2:Zero2Exchange",
    "zero3": "perflab.lab.parallel.zero3:Zero3Exchange",
    "tensor": "perflab.lab.parallel.tensor:TensorExchange",
}
"""The classes of exchanges by name."""
IN_PARTS = ("fsdp2", "zero2", "zero3", "tensor")
"""The exchanges that leave each process a part of the parameters, the gradients and the optimizer's state."""
ONE_BATCH = ("tensor",)
"""The exchanges whose processes all have the same batch, and share its work in another way."""


class Exchange:
    """Makes the gradients of all processes of the default group one: their mean.

    Weights and buffers of all processes become those of rank 0 at construction.

    Args:
        model: the model; parameters that need no gradient are left alone.
        bucket_mb: the size of a bucket in MiB, where there are any.

    Attributes:
        model: called for the forward pass: the model, or a wrapper around it.

    Raises:
        RuntimeError: there is no process group.
    """

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise RuntimeError(
                "an exchange of gradients without a process group: call torch.distributed.init_process_group() first, "
                "or train alone, exchange='none'"
            )
        self.model = model
        self.world_size = distributed.get_world_size()
        self.parameters: Sequence[nn.Parameter] = [one for one in model.parameters() if one.requires_grad]
        self._bucket_bytes = int(bucket_mb * 2**20)
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                distributed.broadcast(tensor, 0)

    def begin(self, *, last: bool) -> None:
        """Prepare a forward and backward pass, the `last` of the step or an earlier one."""

    def average(self) -> None:
        """Replace each gradient by its mean over the processes; one that is None here counts as zero."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the step's gradients, after its last backward pass."""
        own = self.used()
        self.average()
        used = torch.tensor(own, dtype=torch.uint8).to(self.parameters[0].device)
        # Last: a process that lacks a gradient starts later what others have started in the backward pass.
        distributed.all_reduce(used, distributed.ReduceOp.MAX)
        lacks_some = not all(own)  # else nothing is to be read, which would wait
        for parameter, is_used in zip(self.parameters, used.tolist() if lacks_some else (), strict=lacks_some):
            if not is_used:
                parameter.grad = None

    def used(self) -> list[bool]:
        """Tell of each parameter that is trained whether this process has a gradient of it."""
        return [one.grad is not None for one in self.parameters]

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients such that their norm is at most `max_norm`; return the norm before, a scalar."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

    def settle(self) -> None:
        """Bring the parameters into the form that they have between steps: where they are in parts, this process's."""

    def whole(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """Return a settled parameter's data, gradient or optimizer state, gathered if in parts: all have to call."""
        del parameter
        return tensor

    def part(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """Return this process's part of a whole tensor, what `whole` would gather again. All processes have to call."""
        del parameter
        return tensor

    def weight(self, num_tokens: int) -> Tensor:
        """Return n_r W / sum n, a scalar on the device: by it the loss of this process counts in the mean of all."""
        count = torch.tensor(float(num_tokens), device=self.parameters[0].device)
        whole = count.clone()
        distributed.all_reduce(whole)
        return count * self.world_size / whole

    def agree(self, found: Tensor) -> None:
        """Set a scalar, 0 or 1, to 1 where any process has 1."""
        distributed.all_reduce(found, distributed.ReduceOp.MAX)


def blocks_of(model: nn.Module, exchange: str, instead: str) -> nn.ModuleList:
    """Return the blocks of a model that an exchange divides block by block.

    Raises:
        ValueError: the model has no `blocks`; the text names the exchange to give `instead`.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        raise ValueError(
            f"exchange={exchange!r} divides a model block by block, and {type(model).__name__} has no `blocks`; "
            f"give exchange={instead!r}"
        )
    return blocks


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return a parameter's gradient, and make one of zeros where it has none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors of one dtype one after the other, in one buffer; a single contiguous one as it is."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        return tensors[0]
    return torch.cat([one.flatten() for one in tensors])


@torch.no_grad()
def write_back(buffer: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a buffer that `joined` has returned into the tensors that it was made of."""
    if buffer is tensors[0]:
        return
    parts = torch.split(buffer, [one.numel() for one in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def make_exchange(name: str, model: nn.Module, bucket_mb: float = 25.0) -> Exchange:
    """Return an exchange by its name, one of `EXCHANGES`.

    Raises:
        KeyError: there is none of this name.
        RuntimeError: there is no process group.
    """
    made: Exchange = pkgutil.resolve_name(EXCHANGES[name])(model, bucket_mb)
    return made
