"""Speculative decoding: a small model proposes k tokens, and one pass of the large one accepts those that it may keep.

B sequences, k drafts, V vocabulary; q_i and p_i are draft's and target's probabilities of the token at place i:

    drafts x_1 ... x_k ~ q,   p_1 ... p_(k+1) from one forward of the target over them
    x_i is accepted, if all before it are, with probability min(1, p_i(x_i) / q_i(x_i))
    next token ~ max(0, p_n - q_n) / sum        at the first refused place n
               ~ p_(k+1)                        if none is refused

(Leviathan et al. 2023, algorithm 1; Chen et al. 2023.) The tokens are distributed as the target's own, whatever the
draft is: appendix A.1 there proves it. Greedy is the same with probabilities of 0 and 1. In floating point the target's
products over k + 1 rows round otherwise than over one, so where two logits nearly tie, greedy tokens may differ from
plain decoding's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.generate import GREEDY, LanguageModel, Prompts, check_empty, padded, prefill, until_stop
from perflab.lab.inference.sampling import Sampling, draw, probabilities, sample, uniform
from perflab.lab.inference.slots import sent

_DRAFTS, _ACCEPTS = 1, 2
"""Streams of random numbers beside that of plain sampling: every decision has its own."""


@dataclass(frozen=True)
class Speculated:
    """The tokens that speculation generated, and what generating the tokens took.

    tokens    new tokens of each prompt, as `generate` returns them
    rounds    forward passes of the target after the prompts
    drafted   tokens proposed, of all sequences
    accepted  of them, those that the target accepted, behind a stop token too
    """

    tokens: list[list[int]]
    rounds: int
    drafted: int
    accepted: int


@torch.no_grad()
def generate_speculatively(
    model: LanguageModel,
    draft: LanguageModel,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    cache: KVCache,
    draft_cache: KVCache,
    drafts: int = 4,
    sampling: Sampling = GREEDY,
    stop: Collection[int] = (),
) -> Speculated:
    """Generate from `model` with the help of `draft`. The host waits once a round, for how many tokens were accepted.

    Args:
        model, draft: the target, and a model of the same vocabulary.
        prompts, max_new_tokens, sampling, stop: as of `generate`.
        cache, draft_cache: of the two models, empty; a `WindowCache` needs a slack of `drafts` at least.
        drafts: k, tokens proposed in a round.

    Raises:
        ValueError: models of different vocabularies, no drafts, or as `generate`.
    """
    if model.config.vocab_size != draft.config.vocab_size:
        raise ValueError(
            f"a draft model with vocab_size={draft.config.vocab_size} for one with {model.config.vocab_size}: tokens "
            "must mean the same to both; give a draft model of the same tokenizer"
        )
    if drafts < 1:
        raise ValueError(f"drafts={drafts}: wanted 1 or more; without drafts use generate()")
    for one in (cache, draft_cache):
        check_empty(one, len(prompts))
    rows, counts = padded(prompts, model.config, max_new_tokens)
    padded(prompts, draft.config, max_new_tokens)  # fits the draft's context, too
    device = cache.device
    seeds = torch.arange(len(prompts), device=device) + sampling.seed
    tokens = sent(rows, device)
    logits = prefill(model, tokens, cache, counts)
    prefill(draft, tokens, draft_cache, counts)
    first = sample(logits, sampling, seeds, cache.lengths).tolist()
    # All tokens of each sequence; the last one is in neither cache.
    known = [[*prompt, token] for prompt, token in zip(prompts, first, strict=True)]
    limits = [len(prompt) + max_new_tokens for prompt in prompts]
    rounds = drafted = accepted = 0
    while True:
        alive = [
            len(row) < limit and row[-1] not in stop for row, limit in zip(known, limits, strict=True)
        ]  # fmt: skip
        if not any(alive):
            break
        # Fewer where a sequence is near its end: no more tokens than it may have, of which the target adds one.
        k = min(
            drafts,
            *(limit - len(row) - 1 for row, limit, is_alive in zip(known, limits, alive, strict=True) if is_alive),
        )
        proposed, draft_p = _propose(draft, draft_cache, known, alive, k, sampling, seeds)
        last = sent([row[-1] for row in known], device)[:, None]
        start = cache.lengths + 1  # position of the first draft
        held = list(cache.counts)
        cache.begin(k + 1, [(k + 1) * is_alive for is_alive in alive])
        target_p = probabilities(model(torch.cat((last, proposed), dim=1), cache=cache), sampling)
        cache.end()
        places = start[:, None] + torch.arange(k + 1, device=device)
        kept, following = verify(
            draft_p,
            target_p,
            proposed,
            uniform(seeds[:, None], places[:, :k], _ACCEPTS),
            uniform(seeds[:, None], places),
        )
        rows = torch.cat((kept[:, None], following[:, None], proposed), dim=1).tolist()
        for row, (number, token, *words), is_alive in zip(known, rows, alive, strict=True):
            if is_alive:
                row.extend((*words[:number], token))
                accepted += number
        cache.truncate([len(row) - 1 if now else n for row, now, n in zip(known, alive, held, strict=True)])
        draft_cache.truncate([min(len(row) - 1, n) for row, n in zip(known, draft_cache.counts, strict=True)])
        rounds, drafted = rounds + 1, drafted + k * sum(alive)
        for row, prompt in zip(known, prompts, strict=True):
            row[len(prompt) :] = until_stop(row[len(prompt) :], stop)
    new = [row[len(prompt) :] for row, prompt in zip(known, prompts, strict=True)]
    return Speculated(new, rounds, drafted, accepted)


def verify(
    draft_p: Tensor, target_p: Tensor, drafts: Tensor, accepts: Tensor, following: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the number of drafts that are accepted (B,), and the token after them (B,).

    Args:
        draft_p: q, (B, k, V).
        target_p: p, (B, k + 1, V).
        drafts: x, (B, k).
        accepts: (B, k) uniform numbers, one to accept or refuse each draft.
        following: (B, k + 1) uniform numbers, one to draw the token at each place.
    """
    k = drafts.shape[1]
    p_x, q_x = (p.gather(-1, drafts[..., None])[..., 0] for p in (target_p[:, :k], draft_p))
    kept = (accepts * q_x < p_x).long().cumprod(-1).sum(-1)  # u < p / q, without a division by 0
    rest = (target_p - torch.nn.functional.pad(draft_p, (0, 0, 0, 1))).clamp(min=0)  # behind the last draft, p itself
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, target_p)  # p = q but for rounding
    return kept, draw(*(x.gather(1, _at(kept, x))[:, 0] for x in (rest, following)))


def _at(place: Tensor, x: Tensor) -> Tensor:
    """An index that takes one place (B,) of x (B, k + 1, ...)."""
    return place.view(-1, *(1,) * (x.ndim - 1)).expand(-1, 1, *x.shape[2:])


def _propose(
    draft: LanguageModel,
    cache: KVCache,
    known: list[list[int]],
    alive: list[bool],
    k: int,
    sampling: Sampling,
    seeds: Tensor,
) -> tuple[Tensor, Tensor]:
    """k tokens of the draft model (B, k), and the probabilities that they were drawn from (B, k, V)."""
    tokens: list[Tensor] = []
    drawn_from: list[Tensor] = []
    # The draft model has not seen the last token, and not its own last draft if that was accepted.
    unseen = [row[held:] if is_alive else [] for row, held, is_alive in zip(known, cache.counts, alive, strict=True)]
    counts = [len(row) for row in unseen]
    width = max(counts)
    new = sent([[*row, *[0] * (width - len(row))] for row in unseen], cache.device)
    for _ in range(max(k, 1)):  # without room for a draft, too, lest more and more is unseen
        cache.begin(new.shape[1], counts)
        last = sent([max(count - 1, 0) for count in counts], cache.device)
        p = probabilities(draft(new, cache=cache, at=last)[:, 0], sampling)
        cache.end()
        tokens.append(draw(p, uniform(seeds, cache.lengths, _DRAFTS)))
        drawn_from.append(p)
        new, counts = tokens[-1][:, None], [int(is_alive) for is_alive in alive]
    if not k:
        return new.new_empty(len(known), 0), seeds.new_empty(len(known), 0, draft.config.vocab_size).float()
    return torch.stack(tokens, dim=1), torch.stack(drawn_from, dim=1)
