"""The study of test-time compute: how often each way to answer is right, and its tokens, time and memory.

Models of one size, one for each style of `Addition`, are trained from one seed: chains of thought on so few tokens that
they still go wrong, which a search may mend; direct answers on as many, and, "long", on eight times as many. Then each
way answers the same held-out problems; one call of a case is one answer. Intervals of accuracy are Wilson's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import torch

from perflab import Perf
from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.generate import generate
from perflab.lab.inference.sampling import Sampling
from perflab.lab.models import ModelConfig, TransformerLM, parameter_count
from perflab.lab.reasoning.addition import ALPHABET, END, NEXT, Addition, Problem, decode, encode
from perflab.lab.reasoning.branches import Question
from perflab.lab.reasoning.search import (
    WARM,
    Found,
    beam_search,
    best_of_n,
    greedy,
    refine,
    samples,
    self_consistency,
    tree_search,
)
from perflab.lab.train import TrainingConfig, TrainingStep, train

from .reasoning_findings import STUDY, interval

DIGITS = 2
STEPS, LONG_STEPS, TOKENS_PER_STEP = 300, 2400, 800
LEARNING_RATES = {STEPS: 1e-2, LONG_STEPS: 4e-3}
"""By steps: the fewer, the larger."""
QUESTIONS = 200
N = 8
"""Samples of a question."""
ROUNDS = 3
TRAINING_SECONDS, ANSWERING_SECONDS = 0.03, 0.1
"""Of a step, and of an answer; what the set-up takes is estimated by them."""
PAGE_SIZE = 2
"""Prompts have 6 tokens: with pages of 16 nothing of them could be shared."""


@dataclass(frozen=True)
class Asker:
    """A trained model, and its task."""

    task: Addition
    model: TransformerLM

    def question(self, problem: Problem, draft: list[int] | None = None) -> Question:
        """What is asked of the model; a draft that is no whole answer is none."""
        text = None if draft is None else self.task.answer(decode(draft))
        prompt = encode(self.task.prompt(problem, text))
        return Question(self.model, prompt, self.task.solution_length, encode(END), PAGE_SIZE)

    def read(self, tokens: list[int]) -> str | None:
        """The answer in generated tokens."""
        return self.task.answer(decode(tokens))


@cache
def trained(style: str, steps: int, device: torch.device) -> Asker:
    """A model that was trained on so many times `TOKENS_PER_STEP` tokens of a style."""
    task = Addition(DIGITS, style)
    torch.manual_seed(0)
    model = TransformerLM(
        ModelConfig(vocab_size=len(ALPHABET), context_length=64, d_model=32, d_ff=96, num_layers=2, num_heads=4)
    ).to(device)
    batches = task.batches(TOKENS_PER_STEP // task.length, device=device)
    config = TrainingConfig(
        learning_rate=LEARNING_RATES[steps], betas=(0.9, 0.98), weight_decay=0.01, max_grad_norm=1.0,
        warmup_steps=steps // 20, total_steps=steps,
    )  # fmt: skip
    train(TrainingStep(model, next(batches), config), batches, steps)
    return Asker(task, model.eval().requires_grad_(False))


def _warm(problem: Problem) -> Sampling:
    """Sampling with seeds of the problem's own: with the same for all, one unlucky number would spoil them all."""
    return replace(WARM, seed=N * (problem[0] * 10**DIGITS + problem[1]))


def _unshared(ask: Asker, problem: Problem) -> Found:
    """The samples of `samples`, each with a cache of its own; the first is taken, since this is about their cost."""
    question = ask.question(problem)
    cache = KVCache(
        ask.model.config, batch_size=N, capacity=len(question.prompt) + question.max_new_tokens,
        device=next(ask.model.parameters()).device,
    )  # fmt: skip
    made = generate(
        ask.model, [question.prompt] * N, max_new_tokens=question.max_new_tokens, cache=cache,
        sampling=_warm(problem),
        stop=question.stop,
    )  # fmt: skip
    return Found(made[0], 0.0, sum(map(len, made)))


def _shared(ask: Asker, problem: Problem) -> Found:
    drawn = samples(ask.question(problem), N, _warm(problem))
    return Found(drawn.all[0].tokens, drawn.all[0].log_probability, drawn.computed_tokens)


_known: set[tuple[str, int, torch.device]] = set()
"""Models that this process has trained."""
Answerer = Callable[[Asker, Problem], Found]


def _greedy(ask: Asker, problem: Problem) -> Found:
    return greedy(ask.question(problem))


def _majority(ask: Asker, problem: Problem) -> Found:
    return self_consistency(ask.question(problem), N, ask.read, _warm(problem))


def _tree(ask: Asker, problem: Problem) -> Found:
    step_ends = encode(NEXT + ":" + END)
    return tree_search(ask.question(problem), breadth=2, proposals=4, step_ends=step_ends, sampling=_warm(problem))


def _refined(rounds: int) -> Answerer:
    return lambda ask, problem: refine(partial(ask.question, problem), rounds)


WAYS: dict[str, tuple[str, int, Answerer]] = {
    "thought": ("thought", STEPS, _greedy),
    "direct": ("direct", STEPS, _greedy),
    "direct-long": ("direct", LONG_STEPS, _greedy),
    f"direct-long-majority-{N}": ("direct", LONG_STEPS, _majority),
    "refined-long-1": ("refined", LONG_STEPS, _refined(1)),
    f"refined-long-{ROUNDS}": ("refined", LONG_STEPS, _refined(ROUNDS)),
    "sample": ("thought", STEPS, lambda ask, problem: best_of_n(ask.question(problem), 1, _warm(problem))),
    f"best-of-{N}": ("thought", STEPS, lambda ask, problem: best_of_n(ask.question(problem), N, _warm(problem))),
    f"majority-{N}": ("thought", STEPS, _majority),
    "beam-4": ("thought", STEPS, lambda ask, problem: beam_search(ask.question(problem), 4)),
    "tree-2x4": ("thought", STEPS, _tree),
    f"{N}-samples-shared": ("thought", STEPS, _shared),
    f"{N}-samples-unshared": ("thought", STEPS, _unshared),
}
"""By name: the style and the training of the model that is asked, and how."""


@pytest.mark.perf(
    study=STUDY,
    columns="right_share, right_low_share, right_high_share, tokens_per_answer, mean, peak",
    budget=2,
    threshold=0.5,
)
@pytest.mark.parametrize("way", WAYS)
def test_way(perf: Perf, device: torch.device, way: str) -> None:
    """One answer; and how many of all are right."""
    style, steps, answer = WAYS[way]
    training_s = 0.0 if (style, steps, device) in _known else TRAINING_SECONDS * steps
    perf.requires(seconds=ANSWERING_SECONDS, setup_seconds=training_s + ANSWERING_SECONDS * QUESTIONS)
    ask = trained(style, steps, device)
    _known.add((style, steps, device))
    problems = ask.task.problems(QUESTIONS, seed=1)
    found = [answer(ask, problem) for problem in problems]
    right = sum(ask.task.is_right(problem, ask.read(one.tokens)) for problem, one in zip(problems, found, strict=True))
    low, high = interval(right, QUESTIONS)
    perf.note(
        right_share=right / QUESTIONS,
        right_low_share=low,
        right_high_share=high,
        tokens_per_answer=sum(one.computed_tokens for one in found) / QUESTIONS,
        parameters=parameter_count(ask.model.config),
    )
    assert perf(answer, ask, problems[0]).tokens == found[0].tokens
