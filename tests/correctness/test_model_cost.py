"""The cost of a pass beside what PyTorch counts: operations exactly, memory as closely as it claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from perflab.lab.models import MODEL_SIZES, TransformerLM, model_cost, size_config
from perflab.lab.train import TrainingStep, random_tokens

pytestmark = pytest.mark.correctness

BLOCKS = replace(MODEL_SIZES["tiny"], vocab_size=256)  # its blocks outweigh its logits


@pytest.mark.parametrize("impl", ["sdpa", "naive"])
def test_memory_on_a_gpu_is_near_what_its_allocator_saw(impl: str, device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("needs a CUDA device; on a CPU the profiler's peak is the measure")
    config = size_config("small", num_layers=2, attention=impl)
    step = TrainingStep(
        TransformerLM(config).to(device), random_tokens(4, 1024, vocab_size=config.vocab_size, device=device)
    )
    step()
    torch.cuda.reset_peak_memory_stats(device)
    step()
    cost = model_cost(config, batch_size=4, seq_len=1024, mode="train_step")
    assert 0.85 < cost.memory_bytes / torch.cuda.max_memory_allocated(device) < 1.15


def test_naive_attention_needs_memory_that_grows_with_the_square_of_the_sequence() -> None:
    def activations(impl: str, seq_len: int) -> int:
        config = size_config("small", attention=impl, context_length=4096)
        return model_cost(config, batch_size=1, seq_len=seq_len, mode="forward").memory.activations

    assert activations("sdpa", 4096) == 2 * activations("sdpa", 2048)
    scores = 12 * 12 * 4 * (4096**2 - 2 * 2048**2)  # layers, heads, bytes; beyond twice the half
    assert activations("naive", 4096) - 2 * activations("naive", 2048) == pytest.approx(scores, rel=0.05)


def test_a_training_step_of_2_7b_shows_what_it_needs_before_anything_is_built() -> None:
    cost = model_cost(size_config("2.7B"), batch_size=4, seq_len=128, mode="train_step")
    assert cost.parameters == 3_406_809_600
    assert cost.memory.parameters == 4 * cost.parameters
    assert cost.memory.optimizer_state == 8 * cost.parameters
    assert cost.memory_bytes == pytest.approx(16 * cost.parameters, rel=0.01)  # the activations are gone by then


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "backward"}, "mode='backward': wanted one of inference, forward, forward_backward, train_step"),
        ({"seq_len": 2048}, "seq_len=2048: wanted 1 or more of each, and no more than context_length=1024 tokens"),
        ({"batch_size": 0}, "batch_size=0, seq_len=128: wanted 1 or more of each"),
        (
            {"param_dtype": torch.bfloat16, "autocast_dtype": torch.bfloat16},
            "autocast is estimated for torch.float32 weights only; give one of the two",
        ),
    ],
)  # fmt: skip
def test_a_pass_that_cannot_be_is_refused(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=r"wanted|estimated") as caught:
        model_cost(BLOCKS, **{"batch_size": 4, "seq_len": 128, **settings})  # type: ignore[arg-type]
    assert text in str(caught.value)
