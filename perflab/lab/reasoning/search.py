"""Ways to spend more computation on one question: many samples, beams, a tree of steps, a draft put back.

x prompt, y answer, p the model, n samples, k width of a beam, b breadth of a tree:

    greedy            y_t = argmax p(. | x, y_<t)
    best of n         argmax over n samples of  log p(y | x) / |y|
    self-consistency  the answer that most of n samples end with
    beam search       of all continuations by one token of k sequences, the k with the largest log p(y | x)
    tree search       as a beam whose unit is a step of thought: of k proposals for each of b states, the b best
    refinement        y_(r+1) = greedy answer to a prompt that holds y_r, until it stays as it is

Each takes a `Question` and returns a `Found`. All samples and beams of one question share its prompt's cache. What they
cost is counted in tokens that the model computed behind the prompt; seconds and bytes are nobody's business here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass

import torch

from perflab.lab.inference.sampling import Sampling, sample
from perflab.lab.reasoning.branches import Branch, Branches, Question

Reader = Callable[[list[int]], Hashable | None]
"""Reads the answer out of generated tokens; None: there is none."""
WARM = Sampling(temperature=0.7)
"""Sampling as Wang et al. 2023 sample from some of their models (section 3.1)."""


@dataclass(frozen=True)
class Found:
    """The answer that a search decided on, with its log-probability and the tokens computed.

    tokens           the answer, up to and with a stop token
    log_probability  of all its tokens together, in nats
    computed_tokens  tokens that the model computed for all candidates, the prompt's left out
    """

    tokens: list[int]
    log_probability: float
    computed_tokens: int


def greedy(question: Question) -> Found:
    """The likeliest token, each time."""
    branches = Branches(question, 1)
    while any(branches.growing):
        branches.add(branches.log_p.argmax(-1))
    return _found(branches.all[0], branches)


def samples(question: Question, n: int, sampling: Sampling = WARM) -> Branches:
    """n samples side by side; sample i has the seed `sampling.seed + i`, and the tokens that `generate` would give it.

    The prompt is computed once, and its full pages are there once (Kwon et al. 2023, section 4.4, parallel sampling).
    """
    branches = Branches(question, n)
    branches.take([0] * n)
    seeds = sampling.seed + torch.arange(n, device=branches.cache.device)
    while any(branches.growing):
        branches.add(sample(branches.log_p, sampling, seeds, branches.cache.lengths))
    return branches


def best_of_n(question: Question, n: int, sampling: Sampling = WARM) -> Found:
    """Return the sample of n with the largest mean log-probability: Adiwardana et al. 2020, "sample-and-rank".

    The judge is the model itself; Cobbe et al. 2021 (section 4.2) train one. Of equals the first is taken.
    """
    drawn = samples(question, n, sampling)
    return _found(max(drawn.all, key=_mean), drawn)


def self_consistency(question: Question, n: int, read: Reader, sampling: Sampling = WARM) -> Found:
    """Return a sample of n whose answer most samples share: Wang et al. 2023, section 2, unweighted sum.

    Samples without an answer have no vote. Of answers with as many votes, and of samples with one answer, the one with
    the largest mean log-probability is taken.
    """
    drawn = samples(question, n, sampling)
    answers = [read(branch.tokens) for branch in drawn.all]
    votes = Counter(answer for answer in answers if answer is not None)
    ranked = [(votes[answer], _mean(branch)) for answer, branch in zip(answers, drawn.all, strict=True)]
    return _found(drawn.all[ranked.index(max(ranked))], drawn)


def beam_search(question: Question, width: int) -> Found:
    """The likeliest sequence of those that a beam of `width` comes across: Sutskever et al. 2014, section 3.2.

    A sequence that has ended keeps its place until `width` likelier ones push it out. A log-probability only falls as
    tokens are added, so the search is over when the likeliest sequence has ended.
    """
    beams = Branches(question, width)
    while not beams.all[0].has_ended:
        grows = torch.tensor(beams.growing, device=beams.cache.device)[:, None]
        options = beams.totals[:, None] + beams.log_p.where(grows, -torch.inf)  # (n, V)
        options[:, 0] = options[:, 0].where(grows[:, 0], beams.totals)  # what has ended has one option: to stay
        possible = int(options.isfinite().sum())
        best = options.flatten().topk(min(width, possible)).indices  # in order, the likeliest first
        beams.take((best // options.shape[1]).tolist())
        beams.add(best % options.shape[1])
    return _found(beams.all[0], beams)


def tree_search(
    question: Question, *, breadth: int, proposals: int, step_ends: Collection[int], sampling: Sampling = WARM
) -> Found:
    """Breadth-first search over steps of thought: Yao et al. 2023, algorithm 1 (ToT-BFS), proposals sampled.

    Each state gets `proposals` next steps, which end with a token of `step_ends`, the first one greedy and the others
    sampled. Then the `breadth` states with the largest mean log-probability stay. One of each: the search is greedy.
    """
    if breadth < 1 or proposals < 1:
        raise ValueError(f"breadth={breadth}, proposals={proposals}: wanted 1 or more of each")
    states = Branches(question, breadth * proposals)
    while any(states.growing):
        # A state that has ended stays, as its own only proposal.
        made = [(n, k) for n, grows in enumerate(states.growing) for k in range(proposals if grows else 1)]
        states.take([state for state, _ in made])
        device = states.cache.device
        is_greedy = torch.tensor([proposal == 0 for _, proposal in made], device=device)
        seeds = sampling.seed + torch.arange(len(made), device=device)
        within = states.growing
        while any(within):
            drawn = sample(states.log_p, sampling, seeds, states.cache.lengths)
            states.add(torch.where(is_greedy, states.log_p.argmax(-1), drawn), within)
            within = [
                was and not branch.has_ended and branch.tokens[-1] not in step_ends
                for was, branch in zip(within, states.all, strict=True)
            ]
        first_of = {tuple(branch.tokens): n for n, branch in reversed([*enumerate(states.all)])}  # no state twice
        ranked = sorted(first_of.values(), key=lambda n: _mean(states.all[n]), reverse=True)
        states.take(ranked[:breadth])
    return _found(states.all[0], states)


def refine(question_of: Callable[[list[int] | None], Question], rounds: int) -> Found:
    """The answer put back as a prompt: Madaan et al. 2023, algorithm 1, its feedback left to the model that refines.

    `question_of` puts the question with a draft, None at first. An answer that repeats its draft is the last.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: wanted 1 or more; the first one makes the draft")
    draft, computed = None, 0
    for _ in range(rounds):
        found = greedy(question_of(draft))
        computed += found.computed_tokens
        if found.tokens == draft:
            break
        draft = found.tokens
    return Found(found.tokens, found.log_probability, computed)


def _mean(branch: Branch) -> float:
    return branch.mean_log_probability


def _found(branch: Branch, among: Branches) -> Found:
    return Found(branch.tokens, branch.log_probability, among.computed_tokens)
