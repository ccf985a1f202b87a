"""Predicted work held against the closed form and against PyTorch's own counter; what the gate says of more work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from perflab.lab.models import MODEL_SIZES
from perflab.lab.models.transformer import Block, SwiGLU, dropped
from perflab.predicted.gpus.names import GPUS
from perflab.predicted.judge.judge import baseline_of, judge_predicted
from perflab.predicted.prediction import ON_CUDA, predict
from perflab.predicted.records import Cost, Prediction
from perflab.records import Judgement, Policy, Verdict
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


# --- held against the closed form


@pytest.mark.parametrize(
    ("impl", "size"), [*(("naive", name) for name in MODEL_SIZES), ("sdpa", "tiny"), ("sdpa", "2.7B")]
)
def test_flops_are_those_of_the_closed_form(impl: str, size: str) -> None:
    setup = setup_of(size, 4, 128, device="cuda", attention=impl)
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
    setup = setup_of("tiny", attention="naive", training=training)
    step = setup.training_step()
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


# --- and what the gate says


Forward = Callable[[Block, Tensor, Any], Tensor]


def keeping_a_tensor(block: Block, x: Tensor, rope: Any) -> Tensor:
    x = plain_forward(block, x, rope)
    block.__dict__["seen"] = x.detach().float().clone()  # in float32, alive until the next call has its own
    return x


def saving_a_tensor(block: Block, x: Tensor, rope: Any) -> Tensor:
    return plain_forward(block, x, rope).sin()  # whose backward needs what it is the sine of


def one_more_product(block: Block, x: Tensor, rope: Any) -> Tensor:
    return plain_forward(block, block.attention.out(x), rope)


def one_more_operator(block: Block, x: Tensor, rope: Any) -> Tensor:
    return plain_forward(block, -x, rope)


def the_other_way_round(block: Block, x: Tensor, rope: Any) -> Tensor:
    # The same sums, where neither needs the other.
    x = dropped(block.attention(block.attention_norm(x), rope), block.dropout, block.training) + x
    return dropped(block.feed_forward(block.feed_forward_norm(x)), block.dropout, block.training) + x


plain_forward: Forward = Block.forward
LAYERS, BYTES = 6, 2 * 64 * 64 * 4
"""Of a tensor (B, T, d) in float32."""


def now_of() -> Prediction:
    """Of layers enough to be predicted from few."""
    return predicted("train_step", setup_of(device="cuda", num_layers=LAYERS, attention="naive"))


@pytest.fixture(scope="module")
def usual() -> Prediction:
    """Of the code as it is."""
    return now_of()


@pytest.fixture
def judged(usual: Prediction, monkeypatch: pytest.MonkeyPatch) -> Callable[[Forward], Judgement]:
    """The code changed in one place, beside its baseline."""

    def judge(forward: Forward) -> Judgement:
        monkeypatch.setattr(Block, "forward", forward)
        now = now_of()
        assert now.traced_layers == [3, 4]
        return judge_predicted(now, baseline_of(usual, recorded="2025-11-20"), Policy())

    return judge


def growth(judgement: Judgement) -> dict[str, int]:
    """How much more there is of what grew."""
    changes = {"memory": judgement.memory, **judgement.counts}
    return {
        name: change.now - change.before for name, change in changes.items() if change and change.now != change.before
    }


def test_a_tensor_kept_alive_in_each_block_fails_and_is_named(judged: Callable[[Forward], Judgement]) -> None:
    judgement = judged(keeping_a_tensor)
    assert judgement.verdict is Verdict.REGRESSED
    assert growth(judgement) == {"memory": LAYERS * BYTES, "bytes": LAYERS * 2 * BYTES, "operators": LAYERS}
    assert said(judgement) == [
        "blocks.* keeps 6 more tensors at the peak: temporaries of aten::clone, +192 KiB",
        "blocks.*, forward: 6 more aten::clone, +384 KiB moved",
    ]


def test_a_tensor_saved_for_backward_in_each_block_fails_and_is_named(judged: Callable[[Forward], Judgement]) -> None:
    judgement = judged(saving_a_tensor)
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.worse == ["memory", "saved", "bytes", "operators"]
    assert growth(judgement)["memory"] == growth(judgement)["saved"] == LAYERS * BYTES
    assert "blocks.* saves 6 more tensors for backward: aten::add (2, 64, 64) float32, +192 KiB" in said(judgement)
    assert "blocks.*, forward: 6 more aten::sin, +384 KiB moved" in said(judgement)


def test_one_more_product_fails_and_is_named(judged: Callable[[Forward], Judgement]) -> None:
    judgement = judged(one_more_product)
    assert judgement.verdict is Verdict.REGRESSED
    assert growth(judgement)["flops"] == LAYERS * 3 * 2 * 2 * 64 * 64 * 64  # forward and twice that backward
    assert "blocks.*.attention.out, forward: 6 more aten::mm, +6.29 MFLOP, +480 KiB moved" in said(judgement)
    assert "blocks.*.attention.out, backward: 12 more aten::mm, +12.6 MFLOP, +960 KiB moved" in said(judgement)


def test_one_more_operator_fails_and_is_named(judged: Callable[[Forward], Judgement]) -> None:
    judgement = judged(one_more_operator)
    assert judgement.verdict is Verdict.REGRESSED
    assert growth(judgement) == {"bytes": LAYERS * 4 * BYTES, "operators": 2 * LAYERS}
    assert said(judgement) == [
        "blocks.*, forward: 6 more aten::neg, +384 KiB moved",
        "blocks.*, backward: 6 more aten::neg, +384 KiB moved",
    ]


def said(judgement: Judgement) -> list[str]:
    """The reasons, each of which ends with the line of this file or of the model."""
    lines = [reason.rpartition(" (") for reason in judgement.reasons]
    assert all(".py:" in line for _, _, line in lines)
    return [text for text, _, _ in lines]


def test_sums_written_the_other_way_round_pass(judged: Callable[[Forward], Judgement]) -> None:
    judgement = judged(the_other_way_round)
    assert judgement.verdict is Verdict.OK
    assert growth(judgement) == {}


def test_products_and_modules_in_another_order_pass(
    judged: Callable[[Forward], Judgement], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SwiGLU.__init__

    def made_backwards(feed_forward: SwiGLU, config: Any) -> None:
        made(feed_forward, config)
        feed_forward._modules = dict(reversed(feed_forward._modules.items()))

    def up_first(feed_forward: SwiGLU, x: Tensor) -> Tensor:
        up = feed_forward.up(x)
        out: Tensor = feed_forward.down(F.silu(feed_forward.gate(x)) * up)
        return out

    monkeypatch.setattr(SwiGLU, "__init__", made_backwards)
    monkeypatch.setattr(SwiGLU, "forward", up_first)
    judgement = judged(plain_forward)
    assert judgement.verdict is Verdict.OK
    assert growth(judgement) == {}
