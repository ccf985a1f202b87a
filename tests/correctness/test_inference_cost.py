"""The closed forms of what generating costs are the bytes that lie in memory and the operations that run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from perflab.lab.inference.cost import cache_bytes_per_token, decode_cost, weight_bytes
from perflab.lab.inference.quantised import quantise
from perflab.lab.inference.quantised import weight_bytes as bytes_in_memory
from perflab.lab.models import ModelConfig, TransformerLM
from tests.correctness.inference import CONFIGS, PLAIN, cache_of, model_of
from tests.perf.published import rows

pytestmark = pytest.mark.correctness

WIDE = {name: replace(config, d_model=64, d_ff=128) for name, config in CONFIGS.items()}


def bytes_of_weights(model: TransformerLM) -> int:
    """All that the model holds but RoPE's tables."""
    return bytes_in_memory(model) - (0 if model.rope is None else model.rope.cos.nbytes + model.rope.sin.nbytes)


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("config", WIDE.values(), ids=WIDE)
def test_weights_have_the_bytes_of_the_formula(config: ModelConfig, bits: int | None) -> None:
    model = model_of(config).float()
    if bits is not None:
        quantise(model, bits=bits, group_size=64)
    assert weight_bytes(config, torch.float32, bits=bits, group_size=64) == bytes_of_weights(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("config", WIDE.values(), ids=WIDE)
def test_a_cache_has_the_bytes_of_the_formula(config: ModelConfig, dtype: torch.dtype) -> None:
    cache = cache_of("contiguous", config, 3, dtype=dtype, capacity=20)
    assert cache.memory.num_bytes == (3 * 20 + 1) * cache_bytes_per_token(config, dtype)  # one slot for padding


@pytest.mark.parametrize("config", [WIDE["plain"], WIDE["multi-query"], WIDE["learned positions"]])
def test_a_decode_step_does_the_operations_of_the_formula(config: ModelConfig) -> None:
    model, cache = model_of(config).float(), cache_of("contiguous", config, 2, dtype=torch.float32)
    with torch.no_grad():
        cache.begin(30)
        model(torch.zeros(2, 30, dtype=torch.int64), cache=cache)
        cache.end()
        cache.begin(1)
        with (
            sdpa_kernel(SDPBackend.MATH),
            FlopCounterMode(display=False) as counted,
        ):  # a CPU's flash kernel counts as 0
            model(torch.zeros(2, 1, dtype=torch.int64), cache=cache)
    cost = decode_cost(config, batch_size=2, context=31, dtype=torch.float32)
    assert counted.get_total_flops() == cost.flops
    assert cost.cache_bytes == 2 * 31 * cache_bytes_per_token(config, torch.float32)


def test_a_step_reads_every_weight_but_the_embedding_s_and_what_the_window_shows() -> None:
    one = decode_cost(PLAIN, batch_size=1, context=100, dtype=torch.float32)
    embedding = PLAIN.vocab_size * PLAIN.d_model * 4
    assert one.weight_bytes == weight_bytes(PLAIN, torch.float32) - embedding + PLAIN.d_model * 4
    window = decode_cost(replace(PLAIN, window=24), batch_size=1, context=100, dtype=torch.float32)
    assert window.cache_bytes * 100 == one.cache_bytes * 24
    tied = decode_cost(replace(PLAIN, tied_head=True), batch_size=1, context=100, dtype=torch.float32)
    assert tied.flops == one.flops


A100_BYTES_PER_S = 2039e9
"""Of the memory, A100 80GB SXM (NVIDIA A100 Tensor Core GPU, data sheet)."""
BITS = {"bf16": None, "int8": 8, "int4": 4}


@pytest.mark.parametrize("row", rows("a100_80gb_decode.csv"), ids=lambda row: f"{row['model']}-{row['weights']}")
def test_no_published_decode_is_faster_than_its_bytes_allow_and_its_authors_count_the_same_bytes(
    row: dict[str, str],
) -> None:
    names = ("d_model", "d_ff", "num_layers", "num_heads", "num_kv_heads", "vocab_size")
    config = ModelConfig(context_length=256, **{name: int(row[name]) for name in names})  # type: ignore[arg-type]
    cost = decode_cost(
        config, batch_size=1, context=200, dtype=torch.bfloat16, bits=BITS[row["weights"]], group_size=32
    )
    tokens_per_s = float(row["tokens_per_s"])
    assert tokens_per_s < A100_BYTES_PER_S / cost.read_bytes
    # Theirs has its scales in 16 bits and no cache; and keeps the head of int4 as it is.
    assert tokens_per_s * cost.read_bytes == pytest.approx(1e9 * float(row["bandwidth_gb_per_s"]), rel=0.04)
