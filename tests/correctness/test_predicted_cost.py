"""Predicted work held against the closed form and against PyTorch's own counter."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.gpus import GPUS
from perflab.predicted.prediction import predict
from perflab.results.predicted import Cost, Prediction
from tests.correctness.predicted import on_a_gpu, setup_of, work
from tests.perf.setup import Setup

pytestmark = pytest.mark.correctness

H100 = GPUS["h100"]
ATTENTION = "aten::_scaled_dot_product_efficient_attention"


def predicted(mode: str, setup: Setup) -> Prediction:
    with on_a_gpu():
        return predict(work(mode, setup), H100, ON_CUDA)[0]


def flops(costs: list[Cost], *, phase: str = "", operator: str = "") -> int:
    """Of all phases and operators, if not of one."""
    return sum(cost.flops for cost in costs if phase in ("", cost.phase) and operator in ("", cost.operator))


# The smallest, the one whose heads are no power of two, the one with grouped heads: the others are as these, wider. All
# layers of the last one are counted from a few.
@pytest.mark.parametrize(
    ("impl", "size", "changes"),
    [
        ("naive", "tiny", {}),
        ("naive", "xl", {"num_layers": 2}),
        ("naive", "70B", {}),
        ("sdpa", "2.7B", {"num_layers": 2}),
    ],
    ids=str,
)
def test_flops_are_those_of_the_closed_form(impl: str, size: str, changes: dict[str, Any]) -> None:
    setup = setup_of(size, 4, 128, device="cuda", attention=impl, **changes)
    now = predicted("train_step", setup)
    forward = flops(now.costs, phase="forward")
    assert forward == setup.cost("forward").flops
    assert now.parameters == setup.cost("forward").parameters
    assert flops(now.costs, phase="optimizer") == 0
    if impl == "naive":  # written-out attention is products like any others
        assert flops(now.costs, phase="backward") == 2 * forward
        assert now.flops == setup.cost("train_step").flops
    else:  # fused backward computes the weights once more: five products, where forward has two
        attention, backward = (flops(now.costs, operator=f"{ATTENTION}{which}") for which in ("", "_backward"))
        assert 2 * backward == 5 * attention > 0
        assert flops(now.costs, phase="backward") - backward == 2 * (forward - attention)
        assert now.flops == setup.cost("train_step").flops + backward - 2 * attention


@pytest.mark.parametrize("training", [{}, {"precision": "bf16"}, {"checkpointing": "every-block"}])
def test_flops_are_those_that_pytorchs_own_counter_sees_in_a_real_step(training: dict[str, Any]) -> None:
    step = setup_of("tiny", attention="naive", training=training).training_step()
    with FlopCounterMode(display=False) as counter:
        step()
    now = predicted("train_step", setup_of("tiny", device="cuda", attention="naive", training=training))
    assert now.flops == counter.get_total_flops()


def test_work_that_is_done_twice_is_counted_twice() -> None:
    plain = predicted("train_step", setup_of(device="cuda", attention="naive"))
    checkpointed = setup_of(device="cuda", attention="naive", training={"checkpointing": "every-block"})
    again = predicted("train_step", checkpointed).flops - plain.flops
    products = {cost.module: cost.flops for cost in plain.costs if cost.phase == "forward" and cost.flops}
    blocks = sum(count for module, count in products.items() if module.startswith("blocks."))
    assert again == blocks - products["blocks.*.feed_forward.down"]  # whose result nobody asks for a second time
