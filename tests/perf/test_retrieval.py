"""Retrieval: search, prefill of a prompt with passages, and whole answers, beside no retrieval with as long a prompt.

Corpus: an eighth of a megabyte of the standard library's sources, in passages of 512 bytes at most; a token is a byte.
The study's model (--study-model) embeds and answers. Nothing is trained, so its answers mean nothing, and how often the
right passage is among those found (`hit_share`, beside `chance_share`) is what hidden states of random weights give.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from perflab import Perf, own_folder
from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.generate import generate, prefill
from perflab.lab.inference.state_cache import StateCache
from perflab.lab.models import TransformerLM, build_model, is_size, size_config
from perflab.lab.models.cost import forward_flops
from perflab.lab.models.mixers import kind_of
from perflab.lab.retrieval.passages import Question, code_completions, function_questions, split_passages
from perflab.lab.retrieval.pipeline import Retriever
from perflab.lab.retrieval.search import InvertedFileIndex, exact_search, recall
from perflab.lab.train import standard_library_text
from perflab.lab.train.text import VOCAB_SIZE

from .choice import study_model_name

CORPUS_BYTES = 2**17
CONTEXT = 2048
NEW_TOKENS = 32
PASSAGES = (1, 3)
"""In a prompt."""
K = 8
QUERIES = 16
NUM_LISTS = 16
"""About the root of the number of passages."""
PROBES = (1, 4, NUM_LISTS)
QUESTIONS = {"function": function_questions, "completion": code_completions}
SHARE_OF_RATE = 0.5
"""Of the machine's rate in matrix products that a small model's forward reaches at least."""


class Corpus(NamedTuple):
    """What all cases search."""

    text: bytes
    retriever: Retriever


_corpora: dict[tuple[str, torch.device], Corpus] = {}
"""By model and device: each is made once in a process."""


def corpus_of(model_name: str, folder: Path, device: torch.device) -> Corpus:
    """The corpus with its vectors."""
    text = standard_library_text(folder, max_bytes=CORPUS_BYTES).path.read_bytes()
    torch.manual_seed(0)
    model = build_model(model_name, vocab_size=VOCAB_SIZE, context_length=CONTEXT, device=device)
    assert isinstance(model, TransformerLM)
    return Corpus(text, Retriever(model.eval().requires_grad_(False), split_passages(text)))


@pytest.fixture
def corpus(perf: Perf, device: torch.device, request: pytest.FixtureRequest) -> Callable[[], Corpus]:
    """Makes the corpus; skips first where it is no model of the lab's, or embedding it takes too long."""
    name = study_model_name(request.config, device.type)
    if perf.predicts:
        pytest.skip("retrieval reads vectors, and a prediction has none")
    if not is_size(name):
        pytest.skip(f"{name} is no model of the lab's: its hidden states are not known")
    config = size_config(name, vocab_size=VOCAB_SIZE, context_length=CONTEXT)
    one_passage = forward_flops(config, batch_size=1, seq_len=512)
    setup_calls = 0 if (name, device) in _corpora else CORPUS_BYTES / 512 / SHARE_OF_RATE
    perf.requires(flops=one_passage, setup_calls=setup_calls)

    def made() -> Corpus:
        if (name, device) not in _corpora:
            _corpora[name, device] = corpus_of(name, own_folder(request.config.rootpath) / "text", device)
        return _corpora[name, device]

    return made


@pytest.mark.perf(
    study="retrieval: search", columns="mean, queries/s, recall_share, scored_share, peak", versus="how=exact", budget=4
)
@pytest.mark.parametrize("how", ["exact", *(f"{probes}-of-{NUM_LISTS}" for probes in PROBES)])
def test_search(perf: Perf, corpus: Callable[[], Corpus], how: str) -> None:
    """The nearest passages to 16 questions, their vectors given."""
    text, retriever = corpus()
    questions = function_questions(text, retriever.passages, QUERIES)
    queries = retriever.embed([question.asked for question in questions])
    perf.work(queries=QUERIES)
    exact = exact_search(queries, retriever.vectors, K)
    if how == "exact":
        perf.note(recall_share=1.0, scored_share=1.0)
        found = perf(exact_search, queries, retriever.vectors, K)
    else:
        index, nprobe = InvertedFileIndex(retriever.vectors, NUM_LISTS), int(how.partition("-")[0])
        scored = nprobe * index.members.shape[1] / len(retriever.passages)  # lists are as long as the longest
        found = perf(index.search, queries, K, nprobe=nprobe)
        perf.note(recall_share=recall(found, exact), scored_share=scored)
        assert nprobe < NUM_LISTS or torch.equal(found.numbers, exact.numbers)
    assert found.numbers.shape == (QUERIES, K)


@pytest.mark.perf(
    study="retrieval: prefill", columns="mean, tokens/s, prompt_tokens, peak", versus="prompt=equal", budget=4
)
@pytest.mark.parametrize("prompt", ["equal", "retrieved", "question"])
@pytest.mark.parametrize("passages", PASSAGES)
def test_prefill(perf: Perf, corpus: Callable[[], Corpus], passages: int, prompt: str) -> None:
    """A question behind its passages, behind other text of their length, and alone."""
    text, retriever = corpus()
    (question,) = function_questions(text, retriever.passages, 1)
    tokens = torch.tensor([list(prompts_of(text, retriever, question, passages)[prompt])], device=retriever.mean.device)
    perf.work(tokens=tokens.shape[1])
    perf.note(prompt_tokens=tokens.shape[1])
    model = retriever.model
    kind = StateCache if kind_of(model.config).has_state else KVCache
    empty = kind(model.config, batch_size=1, device=tokens.device)
    logits: Tensor = perf(lambda: prefill(model, tokens, empty, [tokens.shape[1]]), setup=lambda: empty.truncate([0]))
    assert logits.shape == (1, VOCAB_SIZE)


@pytest.mark.perf(
    study="retrieval: end to end",
    columns="mean, prompt_tokens, hit_share, chance_share, peak",
    versus="how=equal",
    budget=4,
)
@pytest.mark.parametrize("how", ["equal", "retrieved", "indexed"])
@pytest.mark.parametrize("task", QUESTIONS)
def test_answer(perf: Perf, corpus: Callable[[], Corpus], task: str, how: str) -> None:
    """A question embedded, three passages found, 32 tokens generated; beside as long a prompt that is there already."""
    text, retriever = corpus()
    questions = QUESTIONS[task](text, retriever.passages, QUERIES)
    ready = prompts_of(text, retriever, questions[0], PASSAGES[-1])["equal"]
    if how == "indexed":
        retriever = copy(retriever)
        retriever.index = InvertedFileIndex(retriever.vectors, NUM_LISTS)
    found = retriever.find([question.asked for question in questions], PASSAGES[-1], nprobe=PROBES[1]).numbers.tolist()
    hits = sum(question.passage in row for question, row in zip(questions, found, strict=True))
    if how != "equal":
        perf.note(hit_share=hits / QUERIES, chance_share=PASSAGES[-1] / len(retriever.passages))
    asked, room = questions[0].asked, CONTEXT - NEW_TOKENS

    def prompt() -> bytes:
        return ready if how == "equal" else retriever.prompt(asked, PASSAGES[-1], max_tokens=room, nprobe=PROBES[1])

    perf.note(prompt_tokens=len(prompt()))
    (made,) = perf(lambda: generate(retriever.model, [list(prompt())], max_new_tokens=NEW_TOKENS))
    assert len(made) == NEW_TOKENS


def prompts_of(text: bytes, retriever: Retriever, question: Question, passages: int) -> dict[str, bytes]:
    """Prompts by name: the question behind its passages, behind the text's beginning at the same length, and alone."""
    retrieved = retriever.prompt(question.asked, passages, max_tokens=CONTEXT - NEW_TOKENS)
    more = len(retrieved) - len(question.asked)
    return {"retrieved": retrieved, "equal": text[:more] + question.asked, "question": question.asked}
