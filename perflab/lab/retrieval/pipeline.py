"""From a question to an answer: embed it, find passages, put them ahead of it in the prompt, generate."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from perflab.lab.inference.generate import generate
from perflab.lab.models import TransformerLM
from perflab.lab.retrieval.embedding import pooled
from perflab.lab.retrieval.search import Found, InvertedFileIndex, exact_search


class Retriever:
    """A corpus ready for questions: passages, their vectors and, with `num_lists`, an inverted-file index over these.

    The model embeds and answers; its tokens are bytes. Errors are those of `pooled` and of `InvertedFileIndex`.
    """

    def __init__(self, model: TransformerLM, passages: Sequence[bytes], num_lists: int | None = None) -> None:
        self.model, self.passages = model, passages
        means = pooled(model, passages)
        self.mean = means.mean(0)
        self.vectors = F.normalize(means - self.mean, dim=-1)
        self.index = None if num_lists is None else InvertedFileIndex(self.vectors, num_lists)

    def embed(self, questions: Sequence[bytes]) -> Tensor:
        """Unit vectors (Q, d) of questions, centred as those of the passages are."""
        return F.normalize(pooled(self.model, questions) - self.mean, dim=-1)

    def find(self, questions: Sequence[bytes], k: int, *, nprobe: int = 1) -> Found:
        """The k passages nearest to each question; through the index, if there is one, in `nprobe` of its lists."""
        queries = self.embed(questions)
        if self.index is None:
            return exact_search(queries, self.vectors, k)
        return self.index.search(queries, k, nprobe=nprobe)

    def prompt(self, question: bytes, k: int, *, max_tokens: int, nprobe: int = 1) -> bytes:
        """The question behind as much of its k passages, the best last, as `max_tokens` have room for."""
        if len(question) > max_tokens:
            raise ValueError(f"a question of {len(question)} tokens for max_tokens={max_tokens}: shorten it")
        numbers: list[int] = self.find([question], k, nprobe=nprobe).numbers[0].tolist()
        prompt = question
        for number in numbers:
            passage = self.passages[number] + b"\n" if number >= 0 else b""
            prompt = passage[: max_tokens - len(prompt)] + prompt
        return prompt

    def answer(self, question: bytes, k: int, *, max_new_tokens: int, nprobe: int = 1) -> bytes:
        """Return the model's text behind the question and the passages, as far as the model's context reaches."""
        max_tokens = self.model.config.context_length - max_new_tokens
        prompt = self.prompt(question, k, max_tokens=max_tokens, nprobe=nprobe)
        (made,) = generate(self.model, [list(prompt)], max_new_tokens=max_new_tokens)
        return bytes(made)
