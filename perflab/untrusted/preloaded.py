"""Loads, once for all processes of candidates, what PyTorch loads at the first use of a dispatch mode (900 modules).

The ancestor imports this module before it forks; in each process of its own that would take one to two seconds.
"""

import torch

from perflab.correctness.poison import PoisonedMemory

with PoisonedMemory():
    torch.empty(1)
