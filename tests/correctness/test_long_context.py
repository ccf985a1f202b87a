"""Long context: sinks, block-sparse patterns, RoPE scaling, two-level attention, and what each costs by length.

Shapes: q, k, v, out (B, H, N, D).
"""

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from perflab.correctness import compare, verify
from perflab.lab.attention import IMPLEMENTATIONS, attention
from perflab.lab.attention import pattern_attention as pattern_module
from perflab.lab.attention.flex import band_block_mask
from perflab.lab.attention.hierarchical import hierarchical_attention, reference_hierarchical_attention
from perflab.lab.attention.long_context import (
    attention_cost,
    hierarchical_cost,
    hierarchical_pairs,
    hyena_cost,
    pattern_cost,
    scan_cost,
)
from perflab.lab.attention.pattern import Pattern
from perflab.lab.attention.pattern_attention import pattern_attention, reference_pattern_attention
from perflab.lab.attention.scoring import make_scoring, pairs_in_band
from perflab.lab.inference.generate import generate
from perflab.lab.models import TransformerLM, build_model
from perflab.lab.models.rope_scaling import RopeScaling, rope_frequencies, rope_temperature
from tests.correctness.refusals import refusals_of

pytestmark = [
    pytest.mark.correctness,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MILLION = 1_048_576


# --- Sinks -------------------------------------------------------------------------------------------------------


def test_a_window_with_sinks_sees_what_is_written_here() -> None:
    """Six queries, a window of two tokens, one sink."""
    q = torch.ones(1, 1, 6, 8)
    visible = make_scoring(q, q, is_causal=True, window_size=(1, 0), sinks=1).visible(torch.arange(6), torch.arange(6))
    wanted = ["x.....", "xx....", "xxx...", "x.xx..", "x..xx.", "x...xx"]
    assert ["".join("x" if seen else "." for seen in row) for row in visible.tolist()] == wanted


@pytest.mark.parametrize("sinks", [1, 3, 200])
def test_every_view_of_a_band_with_sinks_is_the_same(sinks: int) -> None:
    """The rule, the mask, the number of pairs, and FlexAttention's blocks."""
    for (n_q, n_k), lower, upper in product([(5, 9), (130, 300), (300, 130)], [-7, 2, -150], [None, 0, 9, -3]):
        q, k = torch.ones(1, 1, n_q, 8), torch.ones(1, 1, n_k, 8)
        scoring = make_scoring(q, k, window_size=(0, -1), sinks=sinks)
        scoring = type(scoring)(scoring.scale, None, lower, upper, sinks)
        i, j = torch.arange(n_q), torch.arange(n_k)
        visible = scoring.visible(i, j)
        hidden = scoring.hidden(n_q, n_k, torch.device("cpu"))
        assert hidden is not None
        assert torch.equal(visible, ~hidden)
        assert pairs_in_band(n_q, n_k, lower, upper, sinks) == int(visible.sum())
        assert scoring.leaves_queries_without_keys(n_q, n_k) == bool((~visible.any(1)).any())
        mask = band_block_mask(lower, upper, n_q, n_k, torch.device("cpu"), sinks)
        listed = mask.to_dense()[0, 0].bool().repeat_interleave(128, 0).repeat_interleave(128, 1)[:n_q, :n_k]
        assert not (visible & ~listed).any(), "a block with a score that is seen is not listed"
        assert torch.equal(mask.mask_mod(None, None, i[:, None], j[None, :]), visible)
        full = [
            set(row[:n].tolist())
            for row, n in zip(mask.full_kv_indices[0, 0], mask.full_kv_num_blocks[0, 0], strict=True)
        ]
        for row, blocks in enumerate(full):
            assert all(visible[row * 128 : row * 128 + 128, b * 128 : b * 128 + 128].all() for b in blocks)


@pytest.mark.parametrize("impl", [name for name, claims in IMPLEMENTATIONS.items() if "sinks" not in claims.features])
def test_who_has_no_sinks_refuses_them_by_name(impl: str, device: torch.device) -> None:
    q = torch.ones(1, 1, 4, 16, dtype=torch.bfloat16, device=device)
    if not IMPLEMENTATIONS[impl].runs_on(device.type):
        pytest.skip(f"{impl} is not there on {device.type}")
    with pytest.raises(NotImplementedError, match=f"'{impl}' has no sinks.*; choose one of: .*triton"):
        attention(q, q, q, impl=impl, is_causal=True, window_size=(1, 0), sinks=1)


@pytest.mark.parametrize("sinks", [-1, 1.5, True])
def test_sinks_that_are_no_number_of_keys_are_refused(sinks: Any) -> None:
    q = torch.ones(1, 1, 4, 16)
    with pytest.raises(ValueError, match=r"sinks must be how many of the first keys every query sees, 0 for none; got"):
        attention(q, q, q, impl="naive", window_size=(1, 0), sinks=sinks)


# --- Block-sparse patterns ---------------------------------------------------------------------------------------


def test_a_pattern_is_its_three_rules_written_out() -> None:
    """Blocks of 16, six of them: the diagonal, every third block back, the first block."""
    table = Pattern(length=96, block=16, local=1, stride=3, globals_=1).seen_blocks()
    wanted = ["x.....", "xx....", "x.x...", "x..x..", "xx..x.", "x.x..x"]
    assert ["".join("x" if seen else "." for seen in row) for row in table.tolist()] == wanted
    both = Pattern(length=96, block=16, local=2, globals_=1, is_causal=False).seen_blocks()
    wanted = ["xxxxxx", "xxx...", "xxxx..", "x.xxx.", "x..xxx", "x...xx"]
    assert ["".join("x" if seen else "." for seen in row) for row in both.tolist()] == wanted


PATTERNS = [
    Pattern(length=length, block=16, local=local, stride=stride, globals_=first, is_causal=is_causal)
    for length, local, stride, first, is_causal in product((1, 16, 67, 131), (1, 3), (0, 2, 3), (0, 2), (True, False))
]


def test_a_pattern_s_mask_pairs_lists_and_block_mask_agree() -> None:
    for pattern in PATTERNS:
        mask = pattern.mask()
        assert pattern.pairs() == int(mask.sum()), pattern
        assert pattern.blocks_a_row().tolist() == pattern.seen_blocks().sum(1).tolist(), pattern
        assert mask.diagonal().all()
        for lists, table in (
            (pattern.key_lists(), pattern.seen_blocks()), (pattern.query_lists(), pattern.seen_blocks().T),
        ):  # fmt: skip
            listed = torch.zeros_like(table)
            for row, (count, blocks) in enumerate(zip(lists.counts.tolist(), lists.blocks.tolist(), strict=True)):
                listed[row, blocks[:count]] = True
            assert torch.equal(listed, table), pattern
        block_mask = pattern_module.block_mask(pattern, torch.device("cpu"))
        assert torch.equal(block_mask.to_dense()[0, 0].bool(), pattern.seen_blocks()), pattern


def plain_pattern_attention(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(~pattern.mask(q.device), -torch.inf), dim=-1) @ v


def masked_magnitudes(
    q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, upstream: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The size of each result's terms, as `perflab.attention.plain` derives it, for scores with a bias, -inf or more.

    Shapes: q (B, H, N, D), keys and values (B, H, M, D), bias (N, M); all heads' own.
    """
    scale = q.shape[-1] ** -0.5
    scores = q @ keys.mT * scale + bias
    conditions = (q.abs() @ keys.mT.abs() * scale * q.shape[-1] ** 0.5 / 2).masked_fill(bias == -torch.inf, 0.0)
    logsumexp = torch.logsumexp(scores, dim=-1, keepdim=True)
    weights = torch.exp(scores - logsumexp)
    of_logsumexp = 1 + (weights * conditions).sum(dim=-1, keepdim=True) + logsumexp.abs()
    of_weights = weights * (1 + conditions + of_logsumexp)
    found = {"out": of_weights @ values.abs()}
    if upstream:
        d_out = upstream["out"].abs()
        of_delta = (d_out * (weights @ values).abs()).sum(dim=-1, keepdim=True)
        of_d_scores = of_weights * (d_out @ values.mT.abs() + of_delta) * scale
        found |= {"dq": of_d_scores @ keys.abs(), "dk": of_d_scores.mT @ q.abs(), "dv": of_weights.mT @ d_out}
    return found


def pattern_magnitudes(
    q: Tensor, k: Tensor, v: Tensor, *, upstream: Mapping[str, Tensor], pattern: Pattern
) -> dict[str, Tensor]:
    bias = torch.zeros(pattern.length, pattern.length).masked_fill(~pattern.mask(), -torch.inf)
    group = q.shape[1] // k.shape[1]
    found = masked_magnitudes(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), bias, upstream)
    return {name: x.unflatten(1, (-1, group)).sum(2) if name in ("dk", "dv") else x for name, x in found.items()}


def hold_pattern(
    candidate: Callable[..., Tensor], pattern: Pattern, dtype: torch.dtype, transposed: bool, head_dim: int = 24
) -> None:
    def make(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1000 + seed)
        shapes = {name: (1, heads, pattern.length, head_dim) for name, heads in (("q", 2), ("k", 1), ("v", 1))}
        found = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
        return {name: x.transpose(1, 2).contiguous().transpose(1, 2) if transposed else x for name, x in found.items()}

    verify(
        candidate,
        make,
        reference=reference_pattern_attention,
        plain=plain_pattern_attention,
        magnitudes=pattern_magnitudes,
        gradient_of=("out",),
        settings={"pattern": pattern},
    )


HELD = [
    Pattern(length=55, block=16, local=1, stride=3, globals_=1),
    Pattern(length=40, block=16, local=2, is_causal=False),
    Pattern(length=130, block=64, local=1, globals_=1),
    Pattern(length=1, block=16),
]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
@pytest.mark.parametrize("pattern", HELD, ids=["strided", "band", "tiles-in-blocks", "one-token"])
def test_pattern_attention_in_triton_is_right(pattern: Pattern, dtype: torch.dtype) -> None:
    hold_pattern(pattern_attention, pattern, dtype, transposed=dtype == torch.float32)


def test_wide_heads_whose_backward_points_at_rows_are_right_in_a_pattern() -> None:
    hold_pattern(pattern_attention, HELD[0], torch.float16, transposed=False, head_dim=136)


@pytest.mark.parametrize("pattern", HELD[:2], ids=["strided", "band"])
def test_pattern_attention_in_flex_is_right(pattern: Pattern) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, pattern.length, 24, generator=generator) for heads in (2, 1, 1))
    wanted, plain = reference_pattern_attention(q, k, v, pattern), plain_pattern_attention(q, k, v, pattern)
    sizes = pattern_magnitudes(q.double(), k.double(), v.double(), upstream={}, pattern=pattern)
    report = compare("out", pattern_attention(q, k, v, pattern, form="flex"), wanted, plain, magnitude=sizes["out"])
    assert report.ok, report


def one_block_short(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
    """The last listed block of each row is left out, where there is more than one."""
    mask = pattern.seen_blocks()
    first = mask.int().argmax(dim=1)
    several = mask.sum(dim=1) > 1
    mask[several, first[several]] = False
    whole = mask.repeat_interleave(pattern.block, 0).repeat_interleave(pattern.block, 1)[: len(q[0, 0]), : len(q[0, 0])]
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(~(whole & pattern.mask()), -torch.inf), dim=-1) @ v


class _OtherLists(torch.autograd.Function):
    """Right forward; the backward takes the lists of keys for those of queries: a stride the wrong way."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.pattern = pattern
        return plain_pattern_attention(q, k, v, pattern)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        local = Pattern(length=ctx.pattern.length, block=ctx.pattern.block, is_causal=ctx.pattern.is_causal)
        with torch.enable_grad():
            out = plain_pattern_attention(*leaves, local)
        return *torch.autograd.grad(out, leaves, d_out), None


def lists_turned_round(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
    return _OtherLists.apply(q, k, v, pattern)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("wrong", "clue"), [(one_block_short, "out is wrong"), (lists_turned_round, "dk is wrong")], ids=["block", "lists"]
)
def test_a_wrong_pattern_attention_is_caught(wrong: Callable[..., Tensor], clue: str) -> None:
    with pytest.raises(AssertionError, match=clue):
        hold_pattern(wrong, HELD[0], torch.float32, transposed=False)


def test_a_pattern_of_no_meaning_is_refused(snapshot: SnapshotAssertion) -> None:
    asked = [
        {"block": 48},
        {"local": 0},
        {"stride": -1},
    ]
    assert refusals_of(lambda given: Pattern(length=64, **given), of=asked) == snapshot


def test_what_a_pattern_does_not_fit_is_refused_with_a_remedy() -> None:
    q = torch.ones(1, 1, 20, 16)
    with pytest.raises(ValueError, match=r"pattern's length=64; got 20 queries and 20 keys\. Make the pattern"):
        pattern_attention(q, q, q, Pattern(length=64))
    with pytest.raises(ValueError, match=r"unknown form 'fast' .* choose one of: definition, flex, triton"):
        pattern_attention(q, q, q, Pattern(length=20), form="fast")
    with pytest.raises(NotImplementedError, match=r"'flex' has no backward on cpu"):
        pattern_attention(q.requires_grad_(), q, q, Pattern(length=20), form="flex")


# --- Two levels --------------------------------------------------------------------------------------------------


def with_means(x: Tensor, block: int) -> Tensor:
    """(..., N, D) and behind it the means of its whole blocks."""
    whole = x.shape[-2] // block * block
    return torch.cat((x, x[..., :whole, :].unflatten(-2, (-1, block)).mean(dim=-2)), dim=-2)


def two_level_bias(length: int, block: int) -> Tensor:
    """What is added to the scores (N, N + N // m): 0 for tokens that are seen, log m for means, else -inf."""
    i, j, c = torch.arange(length)[:, None], torch.arange(length), torch.arange(length // block)
    near = torch.zeros(length, length).masked_fill((j // block < i // block - 1) | (j > i), -torch.inf)
    far = torch.full((length, len(c)), math.log(block)).masked_fill(c >= i // block - 1, -torch.inf)
    return torch.cat((near, far), dim=-1)


def plain_hierarchical_attention(q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
    """The definition's matrices, each step rounded to the inputs' dtype."""
    scores = (q @ with_means(k, block).mT) * q.shape[-1] ** -0.5
    return torch.softmax(scores + two_level_bias(q.shape[-2], block).to(q.dtype), dim=-1) @ with_means(v, block)


def hierarchical_magnitudes(
    q: Tensor, k: Tensor, v: Tensor, *, upstream: Mapping[str, Tensor], block: int
) -> dict[str, Tensor]:
    length = q.shape[-2]
    bias = two_level_bias(length, block).double()
    found = masked_magnitudes(q, with_means(k, block), with_means(v, block), bias, upstream)
    for name in ("dk", "dv") if upstream else ():
        of_tokens, of_means = found[name].split((length, length // block), dim=-2)
        of_means = of_means.repeat_interleave(block, -2) / block
        found[name] = of_tokens + torch.nn.functional.pad(of_means, (0, 0, 0, length - of_means.shape[-2]))
    return found


def hold_hierarchical(candidate: Callable[..., Tensor], length: int, block: int, dtype: torch.dtype) -> None:
    def make(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1000 + seed)
        return {name: torch.randn(2, 2, length, 8, generator=generator).to(dtype) for name in "qkv"}

    verify(
        candidate,
        make,
        reference=reference_hierarchical_attention,
        plain=plain_hierarchical_attention,
        magnitudes=hierarchical_magnitudes,
        gradient_of=("out",),
        settings={"block": block},
    )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
@pytest.mark.parametrize(
    ("length", "block"), [(1, 4), (3, 4), (4, 4), (8, 4), (9, 4), (30, 4), (32, 4), (7, 1), (40, 16)]
)
def test_two_level_attention_by_blocks_is_the_definition(length: int, block: int, dtype: torch.dtype) -> None:
    hold_hierarchical(hierarchical_attention, length, block, dtype)


def test_where_blocks_hold_equal_keys_and_values_it_is_full_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 24, 8, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(1, 2, 6, 8, generator=generator, dtype=torch.float64).repeat_interleave(4, 2) for _ in "kv")
    got = hierarchical_attention(q, k, v, block=4)
    wanted = attention(q, k, v, impl="naive", is_causal=True)
    assert torch.allclose(got, wanted, rtol=1e-13, atol=1e-13)


def without_log_m(q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("perflab.lab.attention.hierarchical.math.log", lambda x: 0.0)
        return hierarchical_attention(q, k, v, block=block)


def a_block_too_many(q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
    """The mean of a block that is also seen token by token."""
    shifted = torch.cat((k[..., :block, :], k[..., :-block, :]), dim=-2)
    return hierarchical_attention(q, shifted, v, block=block)


@pytest.mark.parametrize("wrong", [without_log_m, a_block_too_many], ids=lambda f: f.__name__)
def test_a_wrong_two_level_attention_is_caught(wrong: Callable[..., Tensor]) -> None:
    with pytest.raises(AssertionError, match="out is wrong"):
        hold_hierarchical(wrong, 30, 4, torch.float32)


def test_what_two_levels_cannot_do_is_refused_with_a_remedy() -> None:
    q = torch.ones(1, 2, 8, 4)
    with pytest.raises(ValueError, match=r"block=0: wanted 1 token or more; sqrt\(N / 2\) costs least"):
        hierarchical_attention(q, q, q, block=0)
    with pytest.raises(ValueError, match=r"q, k and v of one shape; .*\. Repeat grouped heads"):
        hierarchical_attention(q, q[:, :1], q[:, :1], block=2)


# --- RoPE scaling ------------------------------------------------------------------------------------------------


def theirs(kind: str, head_dim: int, theta: float, factor: float, trained: int, seq_len: int | None = None) -> Any:
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, max_position_embeddings=trained,
        rope_parameters={
            "rope_type": kind, "rope_theta": theta, "factor": factor, "original_max_position_embeddings": trained,
        },
    )  # fmt: skip
    return rope.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seq_len)


@pytest.mark.parametrize(("head_dim", "theta"), [(64, 10_000.0), (128, 500_000.0), (16, 10_000.0)])
@pytest.mark.parametrize("factor", [1.0, 4.0, 32.0])
def test_frequencies_are_those_of_transformers(head_dim: int, theta: float, factor: float) -> None:
    trained = 2048
    for kind, their_kind, asked in (("linear", "linear", factor), ("yarn", "yarn", factor), ("ntk", "dynamic", 1.0)):
        scaling = RopeScaling(kind=kind, factor=factor, trained_context_length=trained)  # type: ignore[arg-type]
        # Theirs of "dynamic" with factor 1 grows with the length: by s at s times the trained one.
        wanted, temperature = theirs(their_kind, head_dim, theta, asked, trained, int(trained * factor))
        got = rope_frequencies(head_dim, theta, scaling)
        # Theirs are float32: a power, a product and a sum of three roundings each.
        assert torch.allclose(got, wanted.double(), rtol=16 * torch.finfo(torch.float32).eps, atol=0), kind
        assert rope_temperature(scaling) == pytest.approx(temperature, rel=1e-12)


def test_the_paper_s_ramp_is_linear_in_rotations() -> None:
    """theta 10,000, D = 4, L = 128 pi: pair 0 turns 64 times, pair 1 0.64: kept, and divided. In between, by hand."""
    trained = round(128 * math.pi)
    scaling = RopeScaling(kind="yarn-rotations", factor=8, trained_context_length=trained)
    got = rope_frequencies(4, 10_000.0, scaling)
    assert got.tolist() == pytest.approx([1.0, 0.01 / 8], rel=1e-12)
    # Pair 1 at theta 100 turns L 0.1 / 2 pi = 6.4 times: g = 5.4 / 31.
    turns = trained * 0.1 / (2 * math.pi)
    share = (turns - 1) / 31
    got = rope_frequencies(4, 100.0, scaling)
    assert got[1].item() == pytest.approx(0.1 * (share + (1 - share) / 8), rel=1e-12)
    assert rope_temperature(scaling) == pytest.approx(0.1 * math.log(8) + 1)


def test_the_model_turns_by_the_scaled_frequencies_and_temperature() -> None:
    """Also where its settings are given in the model's name, and behind a cache, whose tokens come one by one."""
    model = build_model("tiny+rope_scaling.kind=yarn+rope_scaling.factor=4+rope_scaling.trained_context_length=64")
    assert isinstance(model, TransformerLM)
    scaling = RopeScaling(kind="yarn", factor=4.0, trained_context_length=64)
    assert model.config.rope_scaling == scaling
    assert model.rope is not None
    angles = torch.outer(torch.arange(1024, dtype=torch.float64), rope_frequencies(16, 10_000.0, scaling))
    torch.testing.assert_close(model.rope.cos, ((0.1 * math.log(4) + 1) * angles.cos()).float())
    torch.testing.assert_close(model.rope.sin, ((0.1 * math.log(4) + 1) * angles.sin()).float())
    prompt = [3, 1, 4, 1, 5]
    (tokens,) = generate(model.eval(), [prompt], max_new_tokens=4)
    whole = model(torch.tensor([prompt + tokens]))[0, len(prompt) - 1 : -1].argmax(-1)
    assert tokens == whole.tolist()


def test_ntk_slows_the_last_pair_by_the_factor_and_keeps_the_first() -> None:
    got = rope_frequencies(64, 10_000.0, RopeScaling(kind="ntk", factor=8, trained_context_length=1024))
    plain = rope_frequencies(64, 10_000.0)
    assert got[0] == plain[0]
    assert (plain[-1] / got[-1]).item() == pytest.approx(8, rel=1e-12)


def test_a_scaling_of_no_meaning_is_refused(snapshot: SnapshotAssertion) -> None:
    asked = [
        {"kind": "cubic"},
        {"kind": "none"},
        {"factor": 0.5},
        {"trained_context_length": 0},
        {"slow_rotations": 40.0},
    ]
    assert (
        refusals_of(
            lambda given: RopeScaling(**({"kind": "yarn", "factor": 2.0, "trained_context_length": 1024} | given)),
            of=asked,
        )
        == snapshot
    )


# --- Costs by length ---------------------------------------------------------------------------------------------


def test_pairs_of_two_levels_are_those_of_the_mask() -> None:
    for length, block in product(range(1, 40), (1, 3, 4, 7)):
        i = torch.arange(length)[:, None]
        j, c = torch.arange(length), torch.arange(length // block)
        near = (j // block >= i // block - 1) & (j <= i)
        assert hierarchical_pairs(length, block) == int(near.sum() + (c < i // block - 1).sum()), (length, block)


def test_a_decoding_state_has_the_same_bytes_at_a_thousand_and_at_a_million_tokens() -> None:
    assert scan_cost(1024, 2048, 16).held_bytes == scan_cost(MILLION, 2048, 16).held_bytes == 2048 * (64 + 6)
    assert hyena_cost(1024, 1024, 4096).held_bytes == hyena_cost(MILLION, 1024, 4096).held_bytes
    windowed = [attention_cost(length, 1024, window=4096, sinks=4) for length in (8192, MILLION)]
    assert windowed[0].held_bytes == windowed[1].held_bytes == 2 * 4100 * 1024 * 2
    assert attention_cost(MILLION, 1024).held_bytes == 1024 * attention_cost(1024, 1024).held_bytes


def test_costs_at_a_million_tokens_are_their_closed_forms() -> None:
    n, d = MILLION, 1024
    assert attention_cost(n, d).forward_flops == 4 * d * n * (n + 1) // 2
    window, sinks = 4096, 4
    pairs = n * window - window * (window - 1) // 2
    assert attention_cost(n, d, window=window).forward_flops == 4 * d * pairs
    # The query at n sees min(sinks, n - window + 1) sinks below its window.
    below = sum(min(sinks, i - window + 1) for i in range(window - 1, window + sinks)) + (n - window - sinks) * sinks
    assert attention_cost(n, d, window=window, sinks=sinks).forward_flops == 4 * d * (pairs + below)
    pattern = Pattern(length=n, block=128, local=8, stride=64, globals_=1)
    # Rows of 8 local blocks, every 64th behind them, and the first; those that coincide counted once.
    rows = [len({*range(max(0, i - 7), i + 1), *range(i, -1, -64), 0}) for i in range(n // 128)]
    assert pattern_cost(pattern, d).forward_flops == 4 * d * (sum(rows) * 128**2 - n // 128 * 128 * 127 // 2)
    # A block of 724, near sqrt(N / 2): 3/2 m + N / 2m scores a token where full attention has N / 2.
    ratio = attention_cost(n, d).forward_flops / hierarchical_cost(n, d, 724).forward_flops
    assert ratio == pytest.approx((n / 2) / (1.5 * 724 + n / 1448), rel=0.002)
    assert scan_cost(n, 2 * d, 16).forward_flops == 6 * 16 * 2 * d * n
    assert hyena_cost(n, d, n).forward_flops == 2 * d * (3 * (5 * 2 * n * 21 // 2) + 3 * 2 * n)
