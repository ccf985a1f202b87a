"""Other mixers than attention: registered, built, trained, saved, and decoded with a state in place of keys.

In float64, where running by parts and running at once differ by rounding alone. B batch, T sequence, d width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.cost import cache_bytes, cache_bytes_per_token, decode_cost, weight_bytes
from perflab.lab.inference.decoding import Decoding
from perflab.lab.inference.generate import generate, prefill
from perflab.lab.inference.paged_cache import PagedCache, PagePool
from perflab.lab.inference.quantised import quantise
from perflab.lab.inference.state_cache import StateCache
from perflab.lab.inference.window_cache import WindowCache
from perflab.lab.models import (
    MIXERS,
    ModelConfig,
    TransformerLM,
    architecture,
    build_model,
    load_checkpoint,
    parameter_count,
    register_mixer,
    save_checkpoint,
    size_config,
)
from perflab.lab.models import mixers as table
from perflab.lab.models.cost import forward_flops
from perflab.lab.train import TrainingConfig, TrainingStep, random_tokens
from tests.correctness.refusals import refusal_of, refusals_of

from .decay_mixer import DECAY, DecayMixer
from .inference import PROMPTS, check_decoding, model_of

pytestmark = pytest.mark.correctness

DECAYING = "tests.correctness.decay_mixer:DecayMixer"
BUDGET = 1e-10


@pytest.fixture(autouse=True)
def decay_is_registered() -> Iterator[None]:
    """For one test: others see the table as it was."""
    before = dict(table._KINDS)
    register_mixer("decay", DECAYING, summary="a running mean that forgets", forms=("chunked",))
    yield
    table._KINDS.clear()
    table._KINDS.update(before)


def config_of(**changes: Any) -> ModelConfig:
    plain = {"vocab_size": 61, "context_length": 300, "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return ModelConfig(**{**plain, "mixer": "decay", **changes})


@torch.no_grad()
def test_a_model_runs_with_a_mixer_of_the_readers_own() -> None:
    config = config_of()
    model = model_of(config)
    assert isinstance(model.blocks[0].mixer, DecayMixer)
    assert model.rope is None  # nothing would turn by it
    assert not any("attention" in name for name, _ in model.named_parameters())
    tokens = random_tokens(2, 9, vocab_size=61)
    logits = model(tokens)
    later = tokens.clone()
    later[:, 5:] += 1
    changed = model(later % 61)
    assert torch.equal(logits[:, :5], changed[:, :5])  # causal
    assert not torch.allclose(logits[:, 5:], changed[:, 5:])


def test_a_mixer_may_be_given_as_a_class_and_the_same_registration_again_changes_nothing() -> None:
    kind = register_mixer("decay-class", DecayMixer, forms=("chunked",))
    assert register_mixer("decay-class", DecayMixer, forms=("chunked",)) == kind
    assert isinstance(TransformerLM(config_of(mixer="decay-class")).blocks[1].mixer, DecayMixer)


REFUSED: dict[str, Callable[..., object]] = {
    "a name that is none": lambda: register_mixer("my mixer", DecayMixer),
    "another's name": lambda: register_mixer("mamba", DecayMixer),
    "no target": lambda: register_mixer("x", "decay_mixer"),
    "an unknown form": lambda: register_mixer("x", DecayMixer, forms=("fast",)),
    "a field of none": lambda: register_mixer("x", DecayMixer, fields=("d_ff",)),
    "an unknown mixer": lambda: config_of(mixer="mambo"),
    "a form that it lacks": lambda: config_of(mixer_form="triton"),
    "attention's window": lambda: config_of(window=8),
    "attention's variant": lambda: config_of(attention="naive"),
    "keys for a state": lambda: KVCache(config_of(), batch_size=1),
    "pages for a state": lambda: PagePool(config_of(), num_pages=1),
    "a paged cache for a state": lambda: PagedCache(config_of(), batch_size=1),
    "a ring for a state": lambda: WindowCache(config_of(), batch_size=1),
    "a state for keys": lambda: StateCache(config_of(mixer="attention"), batch_size=1),
    "a state in 8 bits": lambda: StateCache(config_of(), batch_size=1, dtype=torch.int8),
    "no sequence": lambda: StateCache(config_of(), batch_size=0),
    "too much capacity": lambda: StateCache(config_of(), batch_size=1, capacity=301),
    "a mixer that is none": lambda: (
        register_mixer("layer", torch.nn.Identity),
        TransformerLM(config_of(mixer="layer")),
    ),
    "a module that is not there": lambda: (
        register_mixer("gone", "nowhere.at_all:Mixer"),
        TransformerLM(config_of(mixer="gone")),
    ),
}


def test_what_cannot_be_is_refused_with_a_remedy(snapshot: SnapshotAssertion) -> None:
    assert {name: refusal_of(call) for name, call in REFUSED.items()} == snapshot


def test_a_training_step_reaches_the_mixers_weights() -> None:
    torch.manual_seed(0)
    model = TransformerLM(config_of())
    before = model.blocks[0].mixer.inner.weight.clone()
    step = TrainingStep(model, random_tokens(2, 16, vocab_size=61), TrainingConfig(checkpointing="every-block"))
    losses = [float(step()) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert not torch.equal(model.blocks[0].mixer.inner.weight, before)


def test_a_checkpoint_names_the_mixer_and_only_what_means_something_to_it(tmp_path: Path) -> None:
    model = TransformerLM(config_of())
    save_checkpoint(tmp_path / "decay.pt", model)
    load_checkpoint(tmp_path / "decay.pt", TransformerLM(config_of(norm_eps=1e-5)))
    assert {"window", "num_kv_heads", "rope_theta", "mixer_form"}.isdisjoint(architecture(model.config))
    with pytest.raises(
        ValueError, match=r"mixer: saved 'decay', wanted 'attention'\nbuild the model with mixer='decay'$"
    ):
        load_checkpoint(tmp_path / "decay.pt", TransformerLM(config_of(mixer="attention")))


def test_a_checkpoint_from_before_there_were_mixers_is_one_of_attention(tmp_path: Path) -> None:
    path, model = tmp_path / "old.pt", TransformerLM(config_of(mixer="attention"))
    save_checkpoint(path, model)
    document = torch.load(path)
    del document["architecture"]["mixer"]
    torch.save(document, path)
    load_checkpoint(path, model)
    with pytest.raises(ValueError, match="mixer: saved 'attention', wanted 'decay'"):
        load_checkpoint(path, TransformerLM(config_of()))


# A state in place of keys.


def state_cache(config: ModelConfig, batch_size: int) -> StateCache:
    return StateCache(config, batch_size=batch_size, dtype=torch.float64)


@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("lengths", [[7], [1, 9, 9, 3]], ids=["one", "ragged"])
def test_prompts_and_tokens_behind_them_have_the_logits_of_the_full_forward(
    lengths: Sequence[int], chunk: int | None, positions: str
) -> None:
    model = model_of(config_of(positions=positions))
    check_decoding(model, state_cache(model.config, len(lengths)), lengths, steps=6, chunk=chunk)


@torch.no_grad()
def test_padding_moves_no_state_not_even_one_that_holds_a_count() -> None:
    model = model_of(config_of())
    tokens, cache = random_tokens(3, 9, vocab_size=61), state_cache(model.config, 3)
    prefill(model, tokens, cache, [9, 2, 5])
    assert [state[1].flatten().tolist() for state in cache.states] == [[9, 2, 5], [9, 2, 5]]
    for sequence, count in enumerate((9, 2, 5)):
        alone = state_cache(model.config, 1)
        prefill(model, tokens[sequence : sequence + 1, :count], alone, [count])
        for together, one in zip(cache.states, alone.states, strict=True):
            torch.testing.assert_close(together[0][sequence], one[0][0], atol=BUDGET, rtol=0)


def test_unequal_prompts_generate_what_each_generates_alone() -> None:
    model = model_of(config_of())
    together = generate(model, PROMPTS, max_new_tokens=8)
    assert together == [generate(model, [prompt], max_new_tokens=8)[0] for prompt in PROMPTS]
    stop = together[0][3]
    ended = generate(model, PROMPTS, max_new_tokens=8, stop=[stop])
    assert ended == [generate(model, [prompt], max_new_tokens=8, stop=[stop])[0] for prompt in PROMPTS]
    assert len(ended[0]) == 4


@torch.no_grad()
def test_a_step_of_fixed_shape_leaves_those_alone_that_have_ended() -> None:
    """What a CUDA graph records: no group is chosen by a count, and a state that gets no token keeps every bit."""
    model = model_of(config_of())
    cache, eager = (state_cache(model.config, 3) for _ in range(2))
    for one in (cache, eager):
        prefill(model, random_tokens(3, 6, vocab_size=61), one, [6, 4, 5])
    fixed, plain = Decoding(model, cache), Decoding(model, eager)
    cache.fixed = True
    addresses = [tensor.data_ptr() for state in cache.states for tensor in state]
    for alive in ([True, True, True], [True, False, True], [False, False, True]):
        token = torch.tensor([3, 1, 4])
        rows = torch.tensor(alive)
        torch.testing.assert_close(fixed(token, alive)[rows], plain(token, alive)[rows], atol=BUDGET, rtol=0)
    for one, other in zip(cache.states, eager.states, strict=True):
        torch.testing.assert_close(one, other, atol=BUDGET, rtol=0)
    assert addresses == [tensor.data_ptr() for state in cache.states for tensor in state]
    assert cache.counts == cache.lengths.tolist() == [8, 5, 8]
    with pytest.raises(ValueError, match="2 new tokens for a cache whose steps are compiled or recorded"):
        cache.begin(2)


@torch.no_grad()
def test_a_state_is_emptied_whole_or_not_at_all() -> None:
    model = model_of(config_of())
    cache = state_cache(model.config, 2)
    tokens = random_tokens(2, 5, vocab_size=61)
    first = prefill(model, tokens, cache, [5, 3])
    with pytest.raises(ValueError, match=r"sequence 0 has seen 5 tokens and cannot forget 1 of them; give 0 or 5"):
        cache.truncate([4, 3])
    kept = cache.states[0][0][1].clone()
    cache.truncate([0, 3])
    assert torch.equal(cache.states[0][0][1], kept)
    assert not cache.states[0][0][0].any()
    cache.truncate([0, 0])
    assert torch.equal(prefill(model, tokens, cache, [5, 3]), first)
    before = cache.snapshot()
    cache.begin(1)
    model(torch.tensor([[1], [2]]), cache=cache)
    cache.end()
    cache.restore(before)
    cache.recount([5, 3])
    for state, was in zip(cache.states, before, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(state, was, strict=True))


def test_a_full_cache_and_counts_that_do_not_fit_are_refused() -> None:
    cache = StateCache(config_of(), batch_size=2, capacity=4)
    with pytest.raises(ValueError, match=r"counts=\[3, 1\] of 2 new tokens in 2 sequences"):
        cache.begin(2, [3, 1])
    cache.begin(4, [4, 1])
    cache.end()
    with pytest.raises(ValueError, match="the cache is full: sequence 0 has 4 tokens and gets 1 more, with room for 4"):
        cache.begin(1)
    with pytest.raises(RuntimeError, match=r"between begin\(\) and end\(\)"):
        assert cache.positions is None


# What it costs.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_state_has_as_many_bytes_after_a_million_tokens_as_after_a_thousand(dtype: torch.dtype) -> None:
    short, long = config_of(context_length=1_024), config_of(context_length=1_048_576)
    wanted = 3 * 2 * (32 * dtype.itemsize + 4)  # B L (d b + a count in float32)
    for config in (short, long):
        assert cache_bytes(config, dtype, batch_size=3, tokens=config.context_length) == wanted
        assert decode_cost(config, batch_size=3, context=config.context_length, dtype=dtype).cache_bytes == wanted
        assert StateCache(config, batch_size=3, dtype=dtype).num_bytes == wanted
    assert cache_bytes_per_token(long, dtype) == 0
    keys = replace(short, mixer="attention")
    assert cache_bytes(keys, dtype, batch_size=3, tokens=1_000) == 1_000 * cache_bytes(
        keys, dtype, batch_size=3, tokens=1
    )


@pytest.mark.parametrize(
    "changes", [{}, {"positions": "learned", "tied_head": True}, {"feed_forward": "gelu"}], ids=str
)
def test_parameters_and_operations_follow_from_the_mixer_itself(changes: dict[str, Any]) -> None:
    config = config_of(**changes)
    model = TransformerLM(config)
    assert parameter_count(config) == sum(p.numel() for p in model.parameters())
    d, f, matrices = 32, 48, 2 if "feed_forward" in changes else 3
    of_a_token = 2 * (2 * (3 * d * d + matrices * d * f) + 61 * d)
    assert forward_flops(config, batch_size=3, seq_len=10) == 3 * 10 * of_a_token
    cost = decode_cost(config, batch_size=3, context=200, dtype=torch.float32)
    assert cost.flops == 3 * of_a_token
    packed = {**dict(quantise(model, bits=8).named_parameters()), **dict(model.named_buffers())}
    assert weight_bytes(config, torch.float32, bits=8) == sum(tensor.nbytes for tensor in packed.values())


def test_what_the_decay_mixer_computes_is_its_equation() -> None:
    """Its author's arithmetic, by hand: or all of the above would hold for a mixer that mixes nothing."""
    mixer = DecayMixer(config_of(d_model=4, num_heads=2)).double()
    x = torch.randn(1, 3, 4, dtype=torch.float64)
    added = mixer.inner(x)[0]
    sums = [added[0], DECAY * added[0] + added[1], DECAY**2 * added[0] + DECAY * added[1] + added[2]]
    wanted: Tensor = mixer.out(torch.stack(sums) * torch.sigmoid(mixer.gate(x)[0]))
    torch.testing.assert_close(mixer(x)[0], wanted)


# A model's name with settings.


def test_a_name_with_settings_builds_what_they_say() -> None:
    config = size_config("tiny+mixer=decay+tied_head=true+norm_eps=1e-6+context_length=64")
    assert (config.mixer, config.tied_head, config.norm_eps, config.context_length) == ("decay", True, 1e-6, 64)
    assert size_config("tiny+window=none") == size_config("tiny")
    experts = size_config("tiny+experts.experts_per_token=16+experts.num_experts=64+feed_forward=moe").experts
    assert (experts.num_experts, experts.experts_per_token) == (64, 16)
    model = build_model("tiny+mixer=decay", vocab_size=61, context_length=32)
    assert isinstance(model, TransformerLM)
    assert model.config == size_config("tiny", mixer="decay", vocab_size=61, context_length=32)


def test_a_name_with_a_setting_that_cannot_be_is_refused(snapshot: SnapshotAssertion) -> None:
    asked = [
        "tyni+mixer=decay",
        "tiny+mixr=decay",
        "tiny+experts=8",
        "tiny+experts.size=8",
        "tiny+window=wide",
        "tiny+tied_head=yes",
    ]
    assert refusals_of(size_config, of=asked) == snapshot


def test_the_table_lists_the_labs_own_and_what_was_registered() -> None:
    assert [*MIXERS] == ["attention", "retnet", "gla", "mamba2", "rwkv6", "mamba", "hyena", "decay"]
    assert all(kind.summary for kind in MIXERS.values())
