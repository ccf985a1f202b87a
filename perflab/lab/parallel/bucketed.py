"""All-reduces of buckets of gradients while the backward pass computes the others (Li et al. 2020, section 3.2).

The backward pass comes to the last layers first, so buckets are filled from the last parameter to the first. A hook
tells of each gradient that is complete. When all of a bucket are, its all-reduce starts, in the background:

    backward   | layer 3 | layer 2 | layer 1 | layer 0 |
    network              | bucket 0          | bucket 1 |  <- only what is left is waited for

Buckets start in their order in every process, even if a later one is complete before: all processes have to call the
same collectives in the same order, and a process may not use some parameter at all. What has not started when the
backward pass ends is started then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, distributed, nn

from perflab.lab.parallel.exchange import Exchange, gradient_of, joined, write_back


@dataclass
class _Bucket:
    """Parameters whose gradients are exchanged at once."""

    parameters: list[nn.Parameter]
    missing: int = 0
    """The number of gradients that are not complete yet."""
    buffer: Tensor | None = None
    """The gradients one after the other; of a single one the gradient itself. None: not started."""
    work: distributed.Work | None = None


class BucketedExchange(Exchange):
    """Starts the all-reduce of each bucket as soon as its gradients are complete."""

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        super().__init__(model, bucket_mb)
        self._buckets = self._filled()
        self._next = 0
        self._is_last = False
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                told = partial(self._is_complete, bucket)
                parameter.register_post_accumulate_grad_hook(told)  # type: ignore[no-untyped-call]

    def begin(self, *, last: bool) -> None:
        """Prepare a pass; hooks start all-reduces in the last one of the step alone."""
        self._is_last = last
        self._next = 0
        for bucket in self._buckets:
            bucket.missing, bucket.buffer, bucket.work = len(bucket.parameters), None, None

    def average(self) -> None:
        """Start what has not started, wait for all, and write the means back."""
        self._is_last = False
        self._start(len(self._buckets))
        for bucket in self._buckets:
            assert bucket.buffer is not None
            assert bucket.work is not None
            bucket.work.wait()
            bucket.buffer /= self.world_size
            write_back(bucket.buffer, [gradient_of(one) for one in bucket.parameters])
            bucket.buffer = bucket.work = None

    def _filled(self) -> list[_Bucket]:
        buckets: list[_Bucket] = []
        size = 0
        for parameter in reversed(self.parameters):
            size += parameter.nbytes
            alike = bool(buckets) and buckets[-1].parameters[0].dtype is parameter.dtype
            if not alike or size > self._bucket_bytes:
                buckets.append(_Bucket([]))
                size = parameter.nbytes
            buckets[-1].parameters.append(parameter)
        return buckets

    def _is_complete(self, bucket: _Bucket, _: Tensor) -> None:
        if not self._is_last:
            return
        bucket.missing -= 1
        ready = self._next
        while ready < len(self._buckets) and self._buckets[ready].missing == 0:
            ready += 1
        self._start(ready)

    @torch.no_grad()
    def _start(self, end: int) -> None:
        """Start the all-reduces of all buckets before number `end` that have not started."""
        for bucket in self._buckets[self._next : end]:
            bucket.buffer = joined([gradient_of(one) for one in bucket.parameters])
            bucket.work = distributed.all_reduce(bucket.buffer, async_op=True)
        self._next = max(self._next, end)


class OverlappedExchange(BucketedExchange):
    """Starts the all-reduce of each gradient by itself as soon as it is complete: no copies, many messages."""

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        del bucket_mb
        super().__init__(model, 0.0)
