"""Retrieval: search against brute force in float64, the index against exact search, embeddings, passages, prompts.

Shapes: queries (Q, d), vectors (N, d) -> numbers, scores (Q, k).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from perflab.lab.models import TransformerLM, build_model
from perflab.lab.retrieval import embedding, search
from perflab.lab.retrieval.embedding import pooled
from perflab.lab.retrieval.passages import Question, code_completions, function_questions, split_passages
from perflab.lab.retrieval.pipeline import Retriever
from perflab.lab.retrieval.search import NOTHING, Found, InvertedFileIndex, exact_search, recall
from perflab.lab.train.text import SEPARATOR, standard_library_text
from tests.correctness.refusals import refusal_of

pytestmark = pytest.mark.correctness


def brute_force(queries: Tensor, vectors: Tensor, k: int) -> Found:
    """The definition: float64 scores, rounded to float32, sorted by score and then by number, in plain Python."""
    scores = (queries.double()[:, None] * vectors.double()).sum(-1).float()
    rows = [sorted(enumerate(row), key=lambda pair: (-pair[1], pair[0]))[:k] for row in scores.tolist()]
    return Found(
        torch.tensor([[number for number, _ in row] for row in rows]),
        torch.tensor([[score for _, score in row] for row in rows]),
    )


def of_small_integers(number: int, seed: int) -> Tensor:
    """Vectors whose inner products are small integers: exact in every dtype, and full of ties, zeros and negatives."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, (number, 6), generator=generator).float()


def of_any_reals(number: int, seed: int) -> Tensor:
    return torch.randn(number, 48, generator=torch.Generator().manual_seed(seed))


def clustered(number: int, seed: int = 0) -> Tensor:
    """Unit vectors around 10 centres."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 24, generator=generator)
    return F.normalize(centres[torch.arange(number) % 10] + 0.3 * torch.randn(number, 24, generator=generator), dim=-1)


def check_same(found: Found, wanted: Found) -> None:
    assert torch.equal(found.numbers, wanted.numbers)
    assert torch.equal(found.scores, wanted.scores)


def check_index(vectors: Tensor) -> None:
    """With all lists an index finds what exact search does, in its order."""
    index = InvertedFileIndex(vectors, 12)
    check_same(index.search(vectors[:9], 7, nprobe=12), exact_search(vectors[:9], vectors, 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vectors_of", [of_small_integers, of_any_reals])
@pytest.mark.parametrize(("number", "k"), [(1, 1), (2, 2), (301, 1), (301, 10), (301, 301)])
def test_exact_search_is_brute_force_in_float64_with_its_ties(
    vectors_of: Callable[[int, int], Tensor], number: int, k: int, dtype: torch.dtype
) -> None:
    queries, vectors = vectors_of(5, 1).to(dtype), vectors_of(number, 2).to(dtype)
    wanted = brute_force(queries, vectors, k)
    if vectors_of is of_small_integers and k == 10:
        assert (wanted.scores[:, 1:] == wanted.scores[:, :-1]).any(), "no tie to break"
    check_same(exact_search(queries, vectors, k), wanted)


def test_zeros_of_both_signs_are_one_score_and_negative_scores_rank_by_size() -> None:
    vectors = torch.tensor([[-2.0], [0.0], [-1.0], [-0.0], [-1.0], [-torch.inf]])
    assert exact_search(torch.ones(1, 1), vectors, 6).numbers.tolist() == [[1, 3, 2, 4, 0, 5]]
    assert exact_search(-torch.ones(1, 1), vectors, 6).numbers.tolist() == [[5, 0, 2, 4, 1, 3]]


@pytest.mark.parametrize("vectors", [clustered(200), of_small_integers(200, 3), of_any_reals(200, 4).bfloat16()])
def test_with_all_lists_the_index_finds_what_exact_search_does(vectors: Tensor) -> None:
    check_index(vectors)


def test_every_vector_is_in_one_list_the_nearest() -> None:
    vectors = clustered(300)
    index = InvertedFileIndex(vectors, 12)
    assert sorted(index.members[index.members != NOTHING].tolist()) == list(range(300))
    distances = torch.cdist(vectors.double(), index.centroids)
    for number, members in enumerate(index.members):
        own = members[members != NOTHING]
        assert own.tolist() == sorted(own.tolist())
        torch.testing.assert_close(distances[own, number], distances[own].amin(-1))


def test_k_means_comes_to_rest_where_centroids_are_means_of_their_lists() -> None:
    vectors = clustered(300)
    index = InvertedFileIndex(vectors, 10, iterations=50)
    for centroid, members in zip(index.centroids, index.members, strict=True):
        torch.testing.assert_close(centroid, vectors[members[members != NOTHING]].double().mean(0))


def test_recall_rises_with_the_lists_that_are_probed_and_few_of_them_find_most() -> None:
    vectors, queries = clustered(1000), clustered(50, seed=0)
    index = InvertedFileIndex(vectors, 20)
    exact = exact_search(queries, vectors, 10)
    recalls = [recall(index.search(queries, 10, nprobe=nprobe), exact) for nprobe in (1, 4, 20)]
    assert recalls == sorted(recalls)
    # One list of 20 holds a tenth of what is found by chance alone: 0.05.
    assert recalls[0] > 0.3
    assert recalls[-1] == 1


def test_recall_counts_each_vector_that_was_found_wherever_it_stands() -> None:
    scores = torch.zeros(1, 4)
    wanted = Found(torch.tensor([[1, 2, 3, 4]]), scores)
    assert recall(Found(torch.tensor([[4, 3, 9, NOTHING]]), scores), wanted) == 0.5


def test_lists_that_lost_their_vectors_are_empty_and_searched_without_harm() -> None:
    vectors = torch.cat([torch.ones(10, 3), -torch.ones(1, 3)])  # two places for five lists
    index = InvertedFileIndex(vectors, 5)
    sizes = (index.members != NOTHING).sum(-1)
    assert sizes.sum() == 11
    assert (sizes == 0).sum() == 3
    for nprobe in range(1, 6):
        found = index.search(torch.ones(1, 3), 11, nprobe=nprobe)
        there = found.numbers != NOTHING
        assert torch.equal(found.scores[~there], torch.full_like(found.scores[~there], -torch.inf))
        assert len(set(found.numbers[there].tolist())) == there.sum()
    check_same(found, exact_search(torch.ones(1, 3), vectors, 11))


def test_fewer_vectors_than_wanted_in_the_lists_are_filled_up() -> None:
    index = InvertedFileIndex(torch.tensor([[1.0, 0], [1, 0.1], [-1, 0]]), 2, seed=1)
    found = index.search(torch.tensor([[-1.0, 0]]), 3, nprobe=1)
    assert found.numbers.tolist() == [[2, NOTHING, NOTHING]]
    assert found.scores.tolist() == [[1, -torch.inf, -torch.inf]]


def test_the_same_seed_gives_the_same_index_and_the_global_generator_is_left_alone() -> None:
    vectors, state = clustered(200), torch.get_rng_state()
    one, same, other = (InvertedFileIndex(vectors, 12, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.centroids, same.centroids)
    assert torch.equal(one.members, same.members)
    assert not torch.equal(one.centroids, other.centroids)
    assert torch.equal(torch.get_rng_state(), state)


X = torch.ones(4, 3)


def test_what_cannot_be_searched_is_refused_with_a_remedy(snapshot: SnapshotAssertion) -> None:
    calls: list[Callable[..., object]] = [
        lambda: exact_search(X, X, 5),
        lambda: exact_search(X, X, 0),
        lambda: exact_search(X, X[:0], 1),
        lambda: exact_search(X.double(), X, 1),
        lambda: exact_search(X, X.int(), 1),
        lambda: exact_search(X[0], X, 1),
        lambda: exact_search(X, torch.ones(4, 2), 1),
        lambda: InvertedFileIndex(X, 5),
        lambda: InvertedFileIndex(X.double(), 2),
        lambda: InvertedFileIndex(X, 2).search(X, 5, nprobe=1),
        lambda: InvertedFileIndex(X, 2).search(X, 1, nprobe=3),
        lambda: InvertedFileIndex(X, 2).search(X.long(), 1, nprobe=1),
        lambda: split_passages(b""),
        lambda: split_passages(b"x", 0),
        lambda: function_questions(b"x", [b"x"], 1),
    ]
    assert [refusal_of(call) for call in calls] == snapshot


# --- text and model ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return standard_library_text(tmp_path_factory.mktemp("text"), max_bytes=2**16).path.read_bytes()


@pytest.fixture
def model() -> TransformerLM:
    torch.manual_seed(0)
    made = build_model("tiny", vocab_size=256, context_length=640).eval()
    assert isinstance(made, TransformerLM)
    return made


@pytest.mark.parametrize("max_bytes", [1, 7, 512])
def test_passages_are_the_text_without_its_separators_and_none_reaches_over_a_file(text: bytes, max_bytes: int) -> None:
    part = text[: 2**14] if max_bytes < 512 else text
    passages = split_passages(part, max_bytes)
    assert b"".join(passages) == part.replace(SEPARATOR, b"")
    assert 1 <= min(map(len, passages)) <= max(map(len, passages)) <= max_bytes
    files = part.split(SEPARATOR)
    assert b"".join(passages[: len(split_passages(files[0], max_bytes))]) == files[0]


def test_passages_end_behind_empty_lines_then_behind_lines_and_within_a_line_last() -> None:
    assert split_passages(b"aaaaa\n\nbb\ncc", 10) == [b"aaaaa\n\n", b"bb\ncc"]
    assert split_passages(b"aaaaaaa\nbb\ncc", 10) == [b"aaaaaaa\n", b"bb\ncc"]
    assert split_passages(b"aaaaaaaaaaaa\n", 10) == [b"aaaaaaaaaa", b"aa\n"]


@pytest.mark.parametrize("questions_of", [function_questions, code_completions])
def test_questions_are_answered_by_their_passage_alone(
    text: bytes, questions_of: Callable[[bytes, list[bytes], int], list[Question]]
) -> None:
    passages = split_passages(text)
    questions = questions_of(text, passages, 8)
    assert len({question.asked for question in questions}) == 8
    for question in questions:
        assert [at for at, passage in enumerate(passages) if question.asked in passage] == [question.passage]
        assert question.answer in passages[question.passage]
        if questions_of is code_completions:
            assert question.asked + question.answer + b"\n" in passages[question.passage]
        else:
            assert b"def " + question.answer + b"(" in passages[question.passage]


def test_an_embedding_is_the_mean_of_the_states_that_the_head_reads(model: TransformerLM) -> None:
    seen: list[Tensor] = []
    model.norm.register_forward_hook(lambda module, inputs, states: seen.append(states))
    with torch.no_grad():
        model(torch.tensor([list(b"def f():")]))
    torch.testing.assert_close(pooled(model, [b"def f():"]), seen[0].mean(1))


def check_padding(model: TransformerLM) -> None:
    """A text's vector does not depend on the others, nor on their order."""
    texts = [b"import os", b"x", b"return sum(values) / len(values)", b"\0\0"]
    alone = torch.cat([pooled(model, [text]) for text in texts])
    torch.testing.assert_close(pooled(model, texts), alone)
    torch.testing.assert_close(pooled(model, texts, batch_size=3), alone)


@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_a_text_is_embedded_alike_whatever_it_is_run_with(positions: str) -> None:
    model = build_model("tiny", vocab_size=256, context_length=64, positions=positions).eval()
    assert isinstance(model, TransformerLM)
    check_padding(model)


@pytest.mark.parametrize(
    ("texts", "words"),
    [([], "0 texts"), ([b""], "1 texts: wanted one or more, each of 1 to context_length=640"), ([b"x" * 641], "640")],
)
def test_texts_that_no_vector_stands_for_are_refused(model: TransformerLM, texts: list[bytes], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pooled(model, texts)


def test_a_model_in_training_mode_is_refused(model: TransformerLM) -> None:
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        pooled(model.train(), [b"x"])


def test_a_passage_finds_itself_and_stands_next_to_the_question_in_its_prompt(
    text: bytes, model: TransformerLM
) -> None:
    passages = split_passages(text[: 2**13], 128)
    exact, indexed = Retriever(model, passages), Retriever(model, passages, num_lists=8)
    chosen = passages[5 : len(passages) : 10]
    found = exact.find(chosen, 3)
    assert [passages[number] for number in found.numbers[:, 0].tolist()] == chosen
    check_same(indexed.find(chosen, 3, nprobe=8), found)
    best, second = (passages[number] for number in found.numbers[0, :2].tolist())
    asked = chosen[0]
    assert exact.prompt(asked, 2, max_tokens=600) == second + b"\n" + best + b"\n" + asked
    room = len(best) + 1 + len(asked)
    assert exact.prompt(asked, 2, max_tokens=room) == best + b"\n" + asked
    assert exact.prompt(asked, 2, max_tokens=room + 9) == second[:9] + best + b"\n" + asked
    assert exact.prompt(asked, 2, max_tokens=len(asked)) == asked
    with pytest.raises(ValueError, match="shorten it"):
        exact.prompt(asked, 2, max_tokens=len(asked) - 1)
    assert len(exact.answer(asked, 2, max_new_tokens=5)) == 5


def test_retrieval_finds_passages_more_often_than_chance_although_nothing_is_trained(
    text: bytes, model: TransformerLM
) -> None:
    passages = split_passages(text)
    questions = code_completions(text, passages, 64)
    found = Retriever(model, passages).find([question.asked for question in questions], 4).numbers.tolist()
    hits = sum(question.passage in row for question, row in zip(questions, found, strict=True))
    by_chance = 64 * 4 / len(passages)
    assert hits > 3 * by_chance


# --- faults on purpose -------------------------------------------------------------------------------------------


def test_an_index_whose_lists_begin_one_place_late_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = search._lists

    def late(nearest: Tensor, num_lists: int) -> Tensor:
        members = right(nearest, num_lists)
        members[:, 0] = NOTHING
        return members

    with monkeypatch.context() as patched:
        patched.setattr(search, "_lists", late)
        with pytest.raises(AssertionError):
            check_index(clustered(200))
    check_index(clustered(200))


def test_scores_in_the_dtype_of_the_vectors_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right, vectors = search._best, of_any_reals(301, 2).bfloat16()

    def rounded(scores: Tensor, numbers: Tensor, k: int) -> Found:
        return right(scores.bfloat16(), numbers, k)

    monkeypatch.setattr(search, "_best", rounded)
    with pytest.raises(AssertionError):
        check_same(exact_search(vectors[:5], vectors, 10), brute_force(vectors[:5], vectors, 10))


def test_a_mean_that_counts_padding_is_caught(monkeypatch: pytest.MonkeyPatch, model: TransformerLM) -> None:
    class AllReal:
        """torch, but for `arange`, whose numbers lie below every length."""

        def __getattr__(self, name: str) -> object:
            return (lambda length, device: torch.full((length,), -1)) if name == "arange" else getattr(torch, name)

    monkeypatch.setattr(embedding, "torch", AllReal())
    with pytest.raises(AssertionError):
        check_padding(model)
