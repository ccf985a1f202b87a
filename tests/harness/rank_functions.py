"""Functions for test_ranks.py: new processes import them."""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import distributed


def all_sums(factor: float) -> float:
    total = torch.tensor(distributed.get_rank() + 1.0)
    distributed.all_reduce(total)
    return total.item() * factor


def second_rank_raises() -> None:
    if distributed.get_rank() == 1:
        raise ValueError("of its own")
    distributed.all_reduce(torch.ones(3))


def second_rank_dies_after(seconds: float) -> None:
    began = time.monotonic()
    while True:
        distributed.all_reduce(torch.ones(3))
        if distributed.get_rank() == 1 and time.monotonic() - began >= seconds:
            os.kill(os.getpid(), signal.SIGKILL)


def second_rank_leaves_a_collective() -> None:
    if distributed.get_rank() == 0:
        distributed.all_reduce(torch.ones(3))
    else:
        time.sleep(600)
