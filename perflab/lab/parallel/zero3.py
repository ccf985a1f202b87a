"""Parameters, gradients and optimizer state in shards (ZeRO stage 3, Rajbhandari et al. 2020, section 5.3).

The parameters of a block lie one after the other in a flat buffer, and so does what is outside of all blocks. Each of
W processes keeps 1 / W of every buffer. A buffer is gathered before its block's forward pass and again before its
backward pass, and let go after each; its gradients are reduce-scattered in the background once they are complete.

    memory of one process, float32, N parameters, n of them in a block, r outside of all blocks:
        parameters, gradients, AdamW's state    16 N -> 16 N / W + 12 n + 8 r
    messages of a step: for each block two gathers and one reduce-scatter, 4 n bytes each; one of both for the rest

While a buffer is let go, the `data` of its parameters is this process's part of them: one dimension, perhaps empty. The
optimizer updates these parts. A tensor that autograd has saved may be a view of the buffer: it is the buffer's storage
that is emptied and filled, so that each view finds the numbers again (as in Zhao et al. 2023, section 4.2). Nothing is
gathered ahead of its use. A buffer with a frozen parameter, or with one that a pass does not use, stays until the end
of the pass: no gradient tells when its last use is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, distributed, nn

from perflab.lab.parallel.exchange import Exchange, blocks_of

_ALIGN = 64
"""Parameters and shares begin at multiples of so many numbers, of which vectors of any width are made: a part of a
parameter is updated with the instructions, and so with the rounding, that the whole one is updated with."""


class _Buffer:
    """The parameters of a part of the model, one after the other, in as many equal shares as there are processes."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        self.parameters = parameters
        self.trained = [one for one in parameters if one.requires_grad]
        self.shapes = [one.shape for one in parameters]
        self.starts, self.ends = [], []
        size = 0
        for parameter in parameters:
            self.starts.append(size)
            self.ends.append(size + parameter.numel())
            size = _aligned(self.ends[-1])
        self.share = _aligned(-(-size // world_size))
        self._whole = parameters[0].detach().new_zeros(self.share * world_size)
        for parameter, start, end in zip(parameters, self.starts, self.ends, strict=True):
            self._whole[start:end] = parameter.detach().flatten()
        self._bytes = self._whole.nbytes
        self.shard = self._whole[rank * self.share : (rank + 1) * self.share].clone()
        first = rank * self.share
        self.own = [
            slice(min(max(start - first, 0), self.share), min(max(end - first, 0), self.share))
            for start, end in zip(self.starts, self.ends, strict=True)
        ]
        self.is_whole = self.is_in_backward = False
        self.missing = 0
        """The number of gradients that are not complete yet."""
        self.used: list[bool] = []
        """Whether each parameter that is trained had a gradient when the sum was started."""
        self.summed: tuple[Tensor, distributed.Work | None] | None = None
        """The summed gradients of this process's share, and what they wait for, if anything; None: not started."""
        self.let_go()

    @torch.no_grad()
    def gather(self) -> None:
        """Make the parameters whole, unless they are."""
        if self.is_whole:
            return
        self._whole.untyped_storage().resize_(self._bytes)
        distributed.all_gather_into_tensor(self._whole, self.shard)
        for parameter, start, end, shape in zip(self.parameters, self.starts, self.ends, self.shapes, strict=True):
            parameter.data = self._whole[start:end].view(shape)
        self.is_whole = True

    @torch.no_grad()
    def let_go(self) -> None:
        """Leave each parameter this process's part of it, and empty the buffer."""
        for parameter, own in zip(self.parameters, self.own, strict=True):
            parameter.data = self.shard[own]
        self._whole.untyped_storage().resize_(0)
        self.is_whole = self.is_in_backward = False

    @torch.no_grad()
    def start_sum(self, group: distributed.ProcessGroup) -> None:
        """Start to sum the gradients of all processes, each for its own part, and let the whole ones go."""
        self.used = [one.grad is not None for one in self.trained]
        of_all = self.shard.new_zeros(self.share * distributed.get_world_size())
        for parameter, start, end in zip(self.parameters, self.starts, self.ends, strict=True):
            if parameter.grad is not None:
                of_all[start:end] = parameter.grad.flatten()
        summed = torch.empty_like(self.shard)
        work = distributed.reduce_scatter_tensor(summed, of_all, group=group, async_op=True)
        self.summed = summed, work
        for parameter in self.trained:
            parameter.grad = None

    def wait(self) -> Tensor:
        """Wait for the sum, and return this process's share of it, a vector."""
        assert self.summed is not None
        summed, work = self.summed
        if work is not None:
            work.wait()
        self.summed = summed, None
        return summed

    def whole_of(self, number: int, part: Tensor) -> Tensor:
        """Gather a tensor of which each process has the part that belongs to its part of a parameter."""
        shard = part.new_zeros(self.share)
        shard[self.own[number]] = part
        whole = part.new_empty(self.share * distributed.get_world_size())
        distributed.all_gather_into_tensor(whole, shard)
        return whole[self.starts[number] : self.ends[number]].view(self.shapes[number])

    def part_of(self, number: int, whole: Tensor) -> Tensor:
        """Return the part of a whole tensor that belongs to this process's part of a parameter."""
        first = distributed.get_rank() * self.share - self.starts[number]
        own = self.own[number]
        if own.stop == own.start:
            return whole.new_empty(0)
        return whole.flatten()[first + own.start : first + own.stop].clone()


class Zero3Exchange(Exchange):
    """Keeps parameters in shards but for the blocks that are at work, and gradients in shards once they are summed.

    Raises:
        ValueError: the model has no `blocks`.
    """

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        super().__init__(model, bucket_mb)
        blocks = blocks_of(model, "zero3", "flat")
        uses = Counter(id(one) for block in blocks for one in block.parameters())
        uses.update({id(one) for one in _outside(model, blocks)})
        of_blocks = [[one for one in block.parameters() if uses[id(one)] == 1] for block in blocks]
        inside = {id(one) for part in of_blocks for one in part}
        rest = [one for one in model.parameters() if id(one) not in inside]
        self._rest = list(_buffers(rest))
        self._buffers = list(self._rest)
        for block, parameters in zip(blocks, of_blocks, strict=True):
            own = list(_buffers(parameters))
            self._buffers[:0] = own  # last blocks first: the order in which gradients are complete
            block.register_forward_pre_hook(partial(_gather, own))
            block.register_forward_hook(partial(_after_forward, own))
            block.register_full_backward_pre_hook(partial(_before_backward, own))
        model.register_forward_pre_hook(partial(_gather, self._rest))
        model.register_forward_hook(partial(_after_evaluation, self._rest))
        self._summing = [one for one in self._buffers if one.trained]
        # A sum starts when a process is ready for it, a gather where the model needs it: each has an order of its own.
        self._sums = distributed.new_group()
        self._next = 0
        self._is_last = False
        for buffer in self._summing:
            for parameter in buffer.trained:
                told = partial(self._is_complete, buffer)
                parameter.register_post_accumulate_grad_hook(told)  # type: ignore[no-untyped-call]

    def begin(self, *, last: bool) -> None:
        """Prepare a pass. Until the last of a step each process keeps its own gradients, whole."""
        self.settle()
        self._is_last = last
        self._next = 0
        for buffer in self._buffers:
            buffer.missing, buffer.summed = len(buffer.trained), None

    def average(self) -> None:
        """Start the sums that have not started, wait for all, and leave each parameter its part of the mean."""
        self._start(len(self._summing))
        self.settle()
        for buffer in self._summing:
            summed = buffer.wait()
            summed /= self.world_size
            for parameter, own in zip(buffer.parameters, buffer.own, strict=True):
                if parameter.requires_grad:
                    parameter.grad = summed[own]
            buffer.summed = None

    def used(self) -> list[bool]:
        """Tell of each parameter that is trained whether this process has a gradient of it, or has sent it already."""
        had = {
            one: was_used
            for buffer in self._summing
            if buffer.summed is not None
            for one, was_used in zip(buffer.trained, buffer.used, strict=True)
        }
        return [had.get(one, one.grad is not None) for one in self.parameters]

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients such that their norm over all processes is at most `max_norm`; return the norm before."""
        gradients = [one.grad for one in self.parameters if one.grad is not None]
        square = nn.utils.get_total_norm(gradients).square()
        distributed.all_reduce(square)
        norm = square.sqrt()
        nn.utils.clip_grads_with_norm_(self.parameters, max_norm, norm)
        return norm

    def whole(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """Gather a settled parameter's data, its gradient or optimizer state. All processes have to call."""
        if tensor.ndim == 0:
            return tensor
        buffer, number = self._place_of(parameter)
        return buffer.whole_of(number, tensor)

    def part(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """Return this process's part of a whole tensor, in one dimension."""
        if tensor.ndim == 0:
            return tensor
        buffer, number = self._place_of(parameter)
        return buffer.part_of(number, tensor)

    def _place_of(self, parameter: nn.Parameter) -> tuple[_Buffer, int]:
        for buffer in self._buffers:
            for number, one in enumerate(buffer.parameters):
                if one is parameter:
                    return buffer, number
        raise KeyError("no parameter of the model")

    def settle(self) -> None:
        """Let go all that is gathered."""
        for buffer in self._buffers:
            if buffer.is_whole:
                buffer.let_go()

    def _is_complete(self, buffer: _Buffer, _: Tensor) -> None:
        buffer.missing -= 1
        if self._is_last:
            ready = self._next
            while ready < len(self._summing) and self._summing[ready].missing == 0:
                ready += 1
            self._start(ready)
        if buffer.missing == 0 and len(buffer.trained) == len(buffer.parameters):
            buffer.let_go()

    def _start(self, end: int) -> None:
        """Start the sums of all buffers before number `end` that have not started."""
        for number in range(self._next, end):
            self._summing[number].start_sum(self._sums)
            # One sum at a time is on its way: until it is waited for, NCCL keeps the whole gradients that it takes.
            if number:
                self._summing[number - 1].wait()
        self._next = max(self._next, end)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _outside(model: nn.Module, blocks: nn.ModuleList) -> Iterator[nn.Parameter]:
    """Yield the parameters of all modules that are in no block."""
    inside = set(blocks.modules())
    for module in model.modules():
        if module not in inside:
            yield from module.parameters(recurse=False)


def _buffers(parameters: list[nn.Parameter]) -> Iterator[_Buffer]:
    """Put parameters into a buffer for each dtype."""
    for dtype in dict.fromkeys(one.dtype for one in parameters):
        yield _Buffer([one for one in parameters if one.dtype is dtype])


def _gather(buffers: list[_Buffer], *_: object) -> None:
    for buffer in buffers:
        buffer.gather()


def _after_forward(buffers: list[_Buffer], *_: object) -> None:
    for buffer in buffers:
        if not buffer.is_in_backward:  # there, a recomputed forward pass has its backward pass still before it
            buffer.let_go()


def _after_evaluation(buffers: list[_Buffer], *_: object) -> None:
    """Let go what is outside of all blocks where no backward pass follows, which would gather it again at once."""
    if not torch.is_grad_enabled():
        _after_forward(buffers)


def _before_backward(buffers: list[_Buffer], *_: object) -> None:
    for buffer in buffers:
        buffer.gather()
        buffer.is_in_backward = True
