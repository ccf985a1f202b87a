"""Random token batches: the same for one seed on every device.

Shapes: B batch, T sequence; every id drawn uniformly from 0 to V - 1. A batch of zeros would read one
embedding row and give every position the same values, which caches reward with times that no real batch has.
"""

from __future__ import annotations

import torch
from torch import Tensor


def random_tokens(
    batch_size: int,
    seq_len: int,
    *,
    vocab_size: int,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Token ids (B, T), int64, on `device` (`None`: the CPU).

    Drawn on the CPU from a generator of its own and then moved, so that the ids depend on the seed alone and
    the global generator is left as it was.

    Raises:
        ValueError: a size is not positive.
    """
    sizes = {"batch_size": batch_size, "seq_len": seq_len, "vocab_size": vocab_size}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}: wanted a positive integer; give {name}=1 or more")
    generator = torch.Generator(device="cpu").manual_seed(seed)
    tokens = torch.randint(0, vocab_size, (batch_size, seq_len), generator=generator, device="cpu")
    return tokens if device is None else tokens.to(device)
