"""Tokens are drawn with their probabilities, and speculation changes none of them.

Frequencies are held to probabilities by chi-square, at p = 1e-6 with fixed seeds. Each test has a control: something
wrong on purpose, of a kind that libraries had, fails the same check.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab.lab.inference import sampling as sampling_module
from perflab.lab.inference import speculative as speculative_module
from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.generate import generate
from perflab.lab.inference.sampling import Sampling, draw, probabilities, sample, uniform
from perflab.lab.inference.speculative import generate_speculatively, verify
from perflab.lab.models import ModelConfig
from tests.correctness.inference import PLAIN, PROMPTS, cache_of, model_of

pytestmark = pytest.mark.correctness

ROUNDS = 20_000
WHOLE = 8_000
"""Rounds of the whole loop, with its caches, which cost more: enough that its control fails with p = 1e-26."""
V = 12


def chi_square(counts: Tensor, p: Tensor) -> float:
    """p-value of counts (V,) under probabilities (V,); 0 where something came that cannot come."""
    counts, p = counts.double(), p.double()
    if counts[p == 0].sum() > 0:
        return 0.0
    p, counts = p[p > 0], counts[p > 0]
    expected = p * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor(max(len(p) - 1, 1), dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def frequencies(tokens: Tensor, size: int = V) -> Tensor:
    """How often each token came."""
    return torch.bincount(tokens.flatten(), minlength=size)


def logits_of(seed: int) -> Tensor:
    """Logits (V,) of a spread that makes a rare token come in 1 of 200."""
    return 1.5 * torch.randn(V, generator=torch.manual_seed(seed), dtype=torch.float64)


CUTS = {
    "plain": (Sampling(temperature=1.0), lambda p: p),
    "cold": (Sampling(temperature=0.6), lambda p: p ** (1 / 0.6)),
    "top-k": (Sampling(temperature=1.0, top_k=4), lambda p: p.where(p >= p.sort().values[-4], 0.0)),
    "top-p": (Sampling(temperature=1.0, top_p=0.8), lambda p: nucleus(p, 0.8)),
    "both": (
        Sampling(temperature=1.0, top_k=8, top_p=0.5),
        lambda p: nucleus(p.where(p >= p.sort().values[-8], 0.0), 0.5),
    ),
}


def nucleus(p: Tensor, share: float) -> Tensor:
    """The definition, one token after the other."""
    p, kept, total = p / p.sum(), torch.zeros_like(p), 0.0
    for token in p.argsort(descending=True).tolist():
        if total >= share:
            break
        kept[token], total = p[token], total + float(p[token])
    return kept


@pytest.mark.parametrize("cut", CUTS)
def test_tokens_come_as_often_as_their_probability_says(cut: str) -> None:
    sampling, wanted = CUTS[cut]
    logits = logits_of(1)
    p = wanted(logits.softmax(-1))
    p = p / p.sum()
    torch.testing.assert_close(probabilities(logits, sampling).double(), p, atol=1e-6, rtol=0)
    tokens = sample(logits.expand(ROUNDS, V), sampling, torch.arange(ROUNDS), torch.full((ROUNDS,), 7))
    assert chi_square(frequencies(tokens), p) > 1e-6
    # The control: what a temperature that is off by a third draws.
    off = probabilities(logits, Sampling(sampling.temperature * 1.33, sampling.top_k, sampling.top_p))
    wrong = draw(off.expand(ROUNDS, V), uniform(torch.arange(ROUNDS), torch.full((ROUNDS,), 7)))
    assert chi_square(frequencies(wrong), p) < 1e-6


@pytest.mark.parametrize("along", ["seeds", "positions", "streams"])
def test_random_numbers_are_even_and_do_not_repeat(along: str) -> None:
    n, one = torch.arange(ROUNDS), torch.zeros(ROUNDS, dtype=torch.int64)
    if along == "streams":
        u = torch.stack([uniform(n, one, stream) for stream in range(3)])
    else:
        u = uniform(n, one)[None] if along == "seeds" else uniform(one, n)[None]
    for row in u:
        cells = torch.bincount((row * 64).long(), minlength=64)
        assert chi_square(cells, torch.full((64,), 1 / 64)) > 1e-6
        pairs = torch.bincount((row[:-1] * 8).long() * 8 + (row[1:] * 8).long(), minlength=64)  # each and the next
        assert chi_square(pairs, torch.full((64,), 1 / 64)) > 1e-6
    assert len(set(u.flatten().tolist())) == u.numel()
    if len(u) > 1:
        assert float(torch.corrcoef(u).triu(1).abs().max()) < 0.03


def test_greedy_takes_the_largest_and_needs_no_number() -> None:
    logits = torch.randn(5, V)
    assert sample(logits, Sampling(), torch.zeros(5), torch.zeros(5)).tolist() == logits.argmax(-1).tolist()


def test_a_token_without_probability_is_never_drawn_at_the_ends_of_u() -> None:
    p = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    ends = torch.tensor([0.0, 0.5 - 1e-12, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(p.expand(4, 5), ends).tolist() == [1, 1, 3, 3]


Verify = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def rest_from_the_target(q: Tensor, p: Tensor, x: Tensor, accepts: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """Wrong: behind a refusal the target's distribution, and not what of it the draft's leaves."""
    kept, _ = verify(q, p, x, accepts, following)
    n = torch.arange(len(kept))
    return kept, draw(p[n, kept], following[n, kept])


def always_accepts(q: Tensor, p: Tensor, x: Tensor, accepts: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """Wrong: drafts are believed."""
    return verify(q, p, x, torch.zeros_like(accepts), following)


def one_number_for_both(q: Tensor, p: Tensor, x: Tensor, accepts: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """Wrong: the number that refused a draft draws what comes instead."""
    return verify(q, p, x, accepts, torch.cat((accepts, following[:, -1:]), dim=1))


def other_than_drawn_from(q: Tensor, p: Tensor, x: Tensor, accepts: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """Wrong, as transformers#47932: what is checked is not the distribution that the draft was drawn from."""
    return verify((q.log() / 1.3).softmax(-1), p, x, accepts, following)


def first_two(verifying: Verify, k: int) -> tuple[Tensor, Tensor]:
    """The first two tokens of ROUNDS rounds with k drafts, and the target's distribution of such pairs.

    Distributions depend on the token before, as a model's do, so a round that goes on from a wrong token shows.
    """
    draft, target = (torch.stack([logits_of(seed + n) for n in range(V + 1)]).softmax(-1) for seed in (100, 500))
    target = (target + draft) / 2  # alike, or nearly nothing is accepted
    seeds, before = torch.arange(ROUNDS), torch.full((ROUNDS,), V)
    done, position = [torch.full((ROUNDS,), -1) for _ in range(2)], torch.zeros(ROUNDS, dtype=torch.int64)
    while any((d < 0).any() for d in done):
        q, p, x, last = [], [], [], before
        for i in range(k + 1):
            p.append(target[last])
            if i < k:
                q.append(draft[last])
                last = draw(q[-1], uniform(seeds, position + i, 1))
                x.append(last)
        places = position[:, None] + torch.arange(k + 1)
        kept, token = verifying(
            torch.stack(q, 1), torch.stack(p, 1), torch.stack(x, 1), uniform(seeds[:, None], places[:, :k], 2),
            uniform(seeds[:, None], places),
        )  # fmt: skip
        for i in range(k + 1):
            made = torch.where(i < kept, x[min(i, k - 1)], token)
            for n in range(2):
                done[n] = torch.where((position + i == n) & (i <= kept), made, done[n])
        position, before = position + kept + 1, token
    return done[0] * V + done[1], (target[V][:, None] * target[:V]).flatten()


@pytest.mark.parametrize("k", [1, 2, 4])
def test_speculation_draws_from_the_target_s_distribution(k: int) -> None:
    pairs, wanted = first_two(verify, k)
    assert chi_square(frequencies(pairs, V * V), wanted) > 1e-6


@pytest.mark.parametrize(
    "wrong",
    [rest_from_the_target, always_accepts, one_number_for_both, other_than_drawn_from],
    ids=lambda f: f.__name__,
)
def test_speculation_that_is_wrong_on_purpose_fails(wrong: Verify) -> None:
    pairs, wanted = first_two(wrong, 2)
    assert chi_square(frequencies(pairs, V * V), wanted) < 1e-6


class Table:
    """A model whose next token depends on the last one alone: rows of logits, (V, V)."""

    config = ModelConfig(vocab_size=V, context_length=8, d_model=2, d_ff=2, num_layers=1, num_heads=1)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits.float()

    def __call__(self, tokens: Tensor, cache: KVCache | None = None, at: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, V), or of the tokens `at` alone."""
        if at is not None:
            tokens = tokens.gather(1, at[:, None])
        return self.logits[tokens]


def speculated_pairs(drafts: int) -> tuple[Tensor, Tensor]:
    """The first two tokens that `generate_speculatively` makes for WHOLE prompts, and what they are drawn from."""
    draft = torch.stack([logits_of(100 + n) for n in range(V)])
    target = torch.stack([logits_of(500 + n) for n in range(V)]) / 2 + draft / 2  # alike, so that drafts are accepted
    caches = [KVCache(Table.config, batch_size=WHOLE) for _ in range(2)]
    made = generate_speculatively(
        Table(target),
        Table(draft),
        [[0]] * WHOLE,
        max_new_tokens=4,
        cache=caches[0],
        draft_cache=caches[1],
        drafts=drafts,
        sampling=Sampling(temperature=1.0),
    )
    assert 0.2 < made.accepted / made.drafted < 0.9
    p = target.softmax(-1)
    pairs = torch.tensor([row[1:3] for row in made.tokens])  # the first token is of the prompt
    after = p[0] @ p
    return pairs[:, 0] * V + pairs[:, 1], (after[:, None] * p).flatten()


@pytest.mark.parametrize("drafts", [1, 3])
def test_whole_speculation_draws_from_the_target_s_distribution(drafts: int) -> None:
    pairs, wanted = speculated_pairs(drafts)
    assert chi_square(frequencies(pairs, V * V), wanted) > 1e-6


def test_whole_speculation_with_other_probabilities_than_drafts_were_drawn_from_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mistake of transformers#47932."""
    right = speculative_module._propose

    def propose(*arguments: Any) -> tuple[Tensor, Tensor]:
        tokens, drawn_from = right(*arguments)
        return tokens, (drawn_from.log() / 1.3).softmax(-1)

    monkeypatch.setattr(speculative_module, "_propose", propose)
    pairs, wanted = speculated_pairs(3)
    assert chi_square(frequencies(pairs, V * V), wanted) < 1e-6


def test_greedy_tokens_of_speculation_differ_only_where_logits_nearly_tie() -> None:
    """Rows of a product of k + 1 rows round otherwise than one row alone (vllm#41758), so equality would be luck."""
    model, draft = model_of(PLAIN).bfloat16(), model_of(PLAIN).bfloat16()
    with torch.no_grad():
        for p in draft.parameters():
            p += 0.05 * p.std() * torch.randn_like(p)  # like the model, or nothing is accepted
    plain = generate(model, PROMPTS, max_new_tokens=60, cache=cache_of("contiguous", PLAIN, 4, dtype=torch.bfloat16))
    made = generate_speculatively(
        model, draft, PROMPTS, max_new_tokens=60, cache=cache_of("contiguous", PLAIN, 4, dtype=torch.bfloat16),
        draft_cache=cache_of("contiguous", PLAIN, 4, dtype=torch.bfloat16),
    )  # fmt: skip
    assert made.accepted > 0.3 * made.drafted
    exact = model_of(PLAIN)
    exact.load_state_dict(model.state_dict())
    for prompt, one, other in zip(PROMPTS, plain, made.tokens, strict=True):
        same = next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
        with torch.no_grad():
            row = torch.tensor([[*prompt, *one[:same]]])
            wide, narrow = exact(row)[0], model(row)[0].double()
        error = (wide - narrow).abs().max()  # of one way to round; two differ by two of them at most, at two logits
        if same < len(one):
            last = wide[-1]
            assert last[one[same]] - last[other[same]] <= 4 * error, f"token {same} differs by more than rounding"
        assert math.isfinite(float(error))


def test_the_hash_is_splitmix64() -> None:
    states = 1234567 + torch.arange(3) * sampling_module._GOLDEN
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]  # the first outputs from that seed
    assert [value % 2**64 for value in sampling_module._mixed(states).tolist()] == published
