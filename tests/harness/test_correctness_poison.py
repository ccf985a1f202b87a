"""Fresh memory is poisoned wherever a kernel could get it from."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from perflab.correctness import PoisonedMemory

BASE = torch.zeros(2, 3)
ALLOCATIONS: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: torch.empty(2, 3),
    "empty_like": lambda: torch.empty_like(BASE),
    "empty_strided": lambda: torch.empty_strided((2, 3), (1, 2)),
    "empty_permuted": lambda: torch.empty_permuted((2, 3), (1, 0)),
    "new_empty": lambda: BASE.new_empty(2, 3),
    "new_empty_strided": lambda: BASE.new_empty_strided((2, 3), (1, 2)),
    "half": lambda: torch.empty(3, dtype=torch.float16),
    "complex": lambda: torch.empty(3, dtype=torch.complex64),
    "legacy-constructor": lambda: torch.Tensor(2, 3),
}


@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS.keys())
def test_uninitialised_memory_is_nan(allocate: Callable[[], Tensor]) -> None:
    with PoisonedMemory():
        fresh = allocate()
    assert torch.isnan(fresh).all()


def test_integers_are_poisoned_too_and_what_is_to_be_written_stays() -> None:
    with PoisonedMemory():
        integers, bools = torch.empty(3, dtype=torch.int32), torch.empty(3, dtype=torch.bool)
    assert (integers == torch.iinfo(torch.int32).max).all()
    assert bools.all()
    with PoisonedMemory():
        assert torch.zeros(3).eq(0).all()
        assert torch.ones(3).add(1).eq(2).all()


def test_growing_a_tensor_poisons_only_the_new_end() -> None:
    kept = torch.ones(3)
    with PoisonedMemory():
        kept.resize_(5)
    assert kept[:3].eq(1).all()
    assert torch.isnan(kept[3:]).all()


class WritesHalfOfItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        out = torch.empty_like(gradient)
        out[:2] = gradient[:2]
        return out


def test_a_backward_is_poisoned_too(device: torch.device) -> None:
    """On CUDA it runs in a thread of autograd's own."""
    x = torch.randn(4, device=device, requires_grad=True)
    out = WritesHalfOfItsGradient.apply(x)
    with PoisonedMemory():
        (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.isnan(gradient).tolist() == [False, False, True, True]


@torch.library.custom_op("perflab_test::half_written", mutates_args=())
def half_written(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:2] = x[:2]
    return out


def test_the_body_of_a_custom_operator_is_poisoned_too(device: torch.device) -> None:
    with PoisonedMemory():
        out = half_written(torch.ones(4, device=device))
    assert torch.isnan(out).tolist() == [False, False, True, True]


def test_a_compiled_function_still_runs_compiled() -> None:
    """Dynamo runs everything eagerly while it sees a mode; that would be another candidate."""
    ran = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        ran.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    with PoisonedMemory():
        assert compiled(torch.zeros(3)).eq(1).all()
    assert len(ran) == 1


def test_other_threads_and_later_code_are_left_alone() -> None:
    seen: list[bool] = []
    with PoisonedMemory():
        thread = threading.Thread(target=lambda: seen.append(bool(torch.isnan(torch.empty(64)).all())))
        thread.start()
        thread.join()
    assert seen == [False]
