"""Flash attention's point: nothing of size N x N is held, in the forward or in the backward.

Shapes: q, k, v (B, H, N, D). Seen by a dispatch mode, through which every tensor that an operator makes
has to pass.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from perflab.lab.attention import attention
from perflab.lab.attention.tiled import TILE

pytestmark = pytest.mark.correctness

BATCH, HEADS, HEAD_DIM = 1, 1, 64


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements that the memory behind any operator's result has held."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return result


def largest_tensor(impl: str, length: int, is_causal: bool, device: torch.device) -> tuple[int, int]:
    """Elements of the largest tensor in the forward, and in the backward."""
    q, k, v = (torch.randn(BATCH, HEADS, length, HEAD_DIM, device=device, requires_grad=True) for _ in "qkv")
    with LargestTensor() as forward:
        out = attention(q, k, v, is_causal=is_causal, impl=impl)
    upstream = torch.randn_like(out)
    with LargestTensor() as backward:
        torch.autograd.grad(out, (q, k, v), upstream)
    return forward.elements, backward.elements


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("length", [384, 700])
def test_tiled_attention_holds_nothing_larger_than_its_operands_or_a_tile(
    length: int, is_causal: bool, device: torch.device
) -> None:
    operand = BATCH * HEADS * length * HEAD_DIM
    tile = BATCH * HEADS * TILE * TILE
    for elements in largest_tensor("tiled", length, is_causal, device):
        assert elements <= max(operand, tile) < BATCH * HEADS * length * length


def test_tiled_attention_grows_with_the_length_and_not_with_its_square(device: torch.device) -> None:
    short, long = (largest_tensor("tiled", length, False, device) for length in (512, 1024))
    assert [b / a for a, b in zip(short, long, strict=True)] == [2.0, 2.0]


def test_naive_attention_does_hold_the_square(device: torch.device) -> None:
    """The detector sees what it is there to see."""
    square = BATCH * HEADS * 512 * 512
    assert largest_tensor("naive", 512, False, device) == (square, square)
