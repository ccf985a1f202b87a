"""Fused kernels beside the same mathematics in PyTorch, eager and compiled; forward alone, and with its backward.

Shapes: x, gate, up (R, D); weight (D,); logits (N, V); targets (N,).

These kernels move memory and hardly calculate, so their rate is bytes a second: what has to be read and written once,
whatever a variant does beyond that. A rate near the memory's own is all there is to have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from perflab import Perf
from perflab.lab import kernels
from perflab.lab.kernels import reference


def dtype_on(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@dataclass(frozen=True)
class Case:
    """One operator and its inputs.

    rows_read      tensors of (rows, columns) that the forward has to read, and
    rows_written   write; the backward reads its upstream gradient beside the inputs, and writes their gradients
    """

    operator: str
    inputs: tuple[str, ...]
    shape_on_a_gpu: tuple[int, int]
    shape_on_a_cpu: tuple[int, int]
    rows_read: int = 1
    rows_written: int = 1

    def shape(self, device: torch.device) -> tuple[int, int]:
        """Rows and columns there."""
        return self.shape_on_a_gpu if device.type == "cuda" else self.shape_on_a_cpu

    def num_bytes(self, device: torch.device, *, backward: bool) -> int:
        """Least traffic of the rows' tensors; weights, targets and sums of a row are small beside them."""
        tensors = self.rows_read + self.rows_written
        if backward:
            tensors += self.rows_read + self.rows_written + self.rows_read
        rows, columns = self.shape(device)
        return tensors * rows * columns * dtype_on(device).itemsize

    def draw(self, device: torch.device, *, requires_grad: bool) -> list[Tensor]:
        """The operator's inputs, from a fixed seed."""
        generator = torch.Generator(device).manual_seed(0)
        rows, columns = self.shape(device)

        def one(name: str) -> Tensor:
            if name == "targets":
                return torch.randint(columns, (rows,), generator=generator, device=device)
            size, dtype = (columns,) if name == "weight" else (rows, columns), dtype_on(device)
            numbers = torch.randn(size, generator=generator, device=device, dtype=dtype)
            return numbers.requires_grad_(requires_grad)

        return [one(name) for name in self.inputs]


CASES = (
    Case("weighted_sum", ("x", "weight"), (16384, 4096), (1024, 1024), rows_written=0),
    Case("rms_norm", ("x", "weight"), (16384, 4096), (1024, 1024)),
    Case("swiglu", ("gate", "up"), (16384, 11008), (1024, 1024), rows_read=2),
    Case("cross_entropy", ("logits", "targets"), (8192, 128256), (256, 8192), rows_written=0),
)
VARIANTS = ("fused", "eager", "compiled")

pytestmark = [
    pytest.mark.perf(budget=1, side_by_side="impl"),
    pytest.mark.parametrize("impl", VARIANTS),
    pytest.mark.parametrize("case", CASES, ids=lambda case: case.operator),
]


def variant(case: Case, impl: str, device: torch.device) -> Callable[..., Tensor]:
    """The function that is measured. Nothing stands in for another: what cannot run is skipped, and says so."""
    if impl == "fused":
        if device.type == "cpu":
            pytest.skip("in Triton's interpreter, so its time means nothing")
        fused: Callable[..., Tensor] = getattr(kernels, case.operator)
        return fused
    plain: Callable[..., Tensor] = getattr(reference, f"plain_{case.operator}")
    if impl == "eager":
        return plain
    if device.type == "cpu":
        pytest.skip("left to a GPU, where the fused kernels run too")
    compiled: Callable[..., Tensor] = torch.compile(plain, fullgraph=True)
    return compiled


def declare(perf: Perf, case: Case, *, backward: bool) -> None:
    """The least traffic; and room for it, in float32, which eager PyTorch computes in."""
    num_bytes = case.num_bytes(perf.device, backward=backward)
    perf.requires(memory_bytes=3 * num_bytes)
    perf.work(bytes=num_bytes)


def test_fused_kernel(perf: Perf, device: torch.device, case: Case, impl: str) -> None:
    function = variant(case, impl, device)
    declare(perf, case, backward=False)
    with torch.no_grad():
        out = perf(function, *case.draw(device, requires_grad=False))
    shape = case.shape(device)
    assert out.shape in (shape, shape[:1], ())


def test_fused_kernel_backward(perf: Perf, device: torch.device, case: Case, impl: str) -> None:
    """Forward and backward, each timed as a phase."""
    function = variant(case, impl, device)
    declare(perf, case, backward=True)
    inputs = case.draw(device, requires_grad=True)
    leaves = [x for x in inputs if x.requires_grad]
    with torch.no_grad():
        shape, dtype = (out := function(*inputs)).shape, out.dtype
    upstream = torch.randn(shape, generator=torch.Generator(device).manual_seed(1), device=device, dtype=dtype)

    def backward(out: Tensor) -> None:
        torch.autograd.grad(out, leaves, upstream)

    perf.step(forward=lambda: function(*inputs), backward=backward)
