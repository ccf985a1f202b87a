"""Optimizer state in one process only (ZeRO stage 1, Rajbhandari et al. 2020, section 5.1).

AdamW keeps two tensors for each parameter. With W processes each keeps them for 1 / W of the parameters, updates these,
and sends them to all others. Gradients and parameters stay whole in every process.

    memory of one process, float32, N parameters:   8 N bytes of state -> 8 N / W

Whole parameters are dealt out, the largest first, to the process that has least: the shares are even when no parameter
is larger than a share. PyTorch's `ZeroRedundancyOptimizer` does the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn

from perflab.lab.parallel.exchange import joined, write_back


class ShardedUpdate:
    """Deals out parameters to the processes of the default group, and sends the updated ones to all.

    Args:
        parameters: the parameters that are trained, in the same order in every process.

    Attributes:
        own: the parameters that this process updates.

    Raises:
        ValueError: there are fewer parameters than processes.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        world_size = distributed.get_world_size()
        if len(parameters) < world_size:
            raise ValueError(
                f"shard_optimizer=True: {len(parameters)} parameters for {world_size} processes; give "
                "shard_optimizer=False"
            )
        self._shares: list[list[nn.Parameter]] = [[] for _ in range(world_size)]
        sizes = [0] * world_size
        for parameter in sorted(parameters, key=lambda one: one.numel(), reverse=True):  # stable: alike in all
            least = sizes.index(min(sizes))
            self._shares[least].append(parameter)
            sizes[least] += parameter.numel()
        self.own = self._shares[distributed.get_rank()]

    def of_owner(self, parameter: nn.Parameter, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the optimizer's state of a parameter, of which the process that updates it sends `state` to all."""
        for owner, share in enumerate(self._shares):
            if any(one is parameter for one in share):
                sent = [{key: value.cpu() for key, value in state.items()}]
                distributed.broadcast_object_list(sent, owner)
                return sent[0]
        return {}  # a frozen parameter

    @torch.no_grad()
    def send(self) -> None:
        """Send what each process has updated to all others: one broadcast for each process and dtype."""
        for owner, share in enumerate(self._shares):
            for dtype in sorted({one.dtype for one in share}, key=str):
                members = [one for one in share if one.dtype is dtype]
                buffer = joined(members)
                distributed.broadcast(buffer, owner)
                write_back(buffer, members)
