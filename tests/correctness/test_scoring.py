"""What causal, window, soft cap and alignment mean: a band of the score matrix, held to its words."""

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from perflab.lab.attention import IMPLEMENTATIONS, attention
from perflab.lab.attention.registry import DROPOUT, FEATURES
from perflab.lab.attention.scoring import Settings, make_scoring, pairs_in_band
from tests.correctness.refusals import refusals_of

pytestmark = pytest.mark.correctness

LENGTHS = [(1, 1), (1, 5), (5, 1), (4, 7), (7, 4), (6, 6)]


def sees(settings: Settings, num_queries: int, num_keys: int) -> list[list[int]]:
    """For each query the keys that it sees."""
    q, k = torch.empty(1, 1, num_queries, 8), torch.empty(1, 1, num_keys, 8)
    hidden = make_scoring(q, k, **settings).hidden(num_queries, num_keys, q.device)
    if hidden is None:
        return [list(range(num_keys))] * num_queries
    return [row.logical_not().nonzero().flatten().tolist() for row in hidden]


def test_causal_starts_at_the_first_key_or_ends_at_the_last() -> None:
    assert sees({"is_causal": True}, 3, 5) == [[0], [0, 1], [0, 1, 2]]
    assert sees({"is_causal": True, "causal_alignment": "bottom-right"}, 2, 4) == [[0, 1, 2], [0, 1, 2, 3]]
    assert sees({"is_causal": True, "causal_alignment": "bottom-right"}, 4, 2) == [[], [], [0], [0, 1]]


def test_a_window_counts_keys_before_and_behind_a_querys_own() -> None:
    assert sees({"window_size": (1, 0)}, 4, 4) == [[0], [0, 1], [1, 2], [2, 3]]
    assert sees({"window_size": (0, 1)}, 3, 3) == [[0, 1], [1, 2], [2]]
    assert sees({"window_size": (-1, 1)}, 3, 3) == [[0, 1], [0, 1, 2], [0, 1, 2]]
    assert sees({"window_size": (-1, -1)}, 2, 3) == sees({}, 2, 3)
    assert sees({"window_size": (1, 5), "is_causal": True}, 3, 3) == [[0], [0, 1], [1, 2]]
    assert sees({"window_size": (0, 0), "causal_alignment": "bottom-right"}, 2, 4) == [[2], [3]]


@pytest.mark.parametrize(("num_queries", "num_keys"), LENGTHS)
def test_a_band_knows_its_pairs_and_whether_it_leaves_a_query_without_keys(num_queries: int, num_keys: int) -> None:
    q, k = torch.empty(1, 1, num_queries, 8), torch.empty(1, 1, num_keys, 8)
    bounds = [None, *range(-8, 9)]
    for lower in bounds:
        for upper in bounds:
            scoring = make_scoring(q, k)
            scoring = type(scoring)(1.0, None, lower, upper)
            mask = scoring.visible(torch.arange(num_queries), torch.arange(num_keys))
            hidden = scoring.hidden(num_queries, num_keys, mask.device)
            assert mask.all() if hidden is None else torch.equal(mask, ~hidden)
            assert pairs_in_band(num_queries, num_keys, lower, upper) == int(mask.sum()), (lower, upper)
            empty = not bool(mask.any(dim=-1).all())
            assert scoring.leaves_queries_without_keys(num_queries, num_keys) == empty, (lower, upper)


def test_settings_that_mean_nothing_are_refused(snapshot: SnapshotAssertion) -> None:
    asked = [
        {"window_size": (1,)},
        {"window_size": (-2, 0)},
        {"window_size": 5},
        {"window_size": (1.5, 0)},
        {"softcap": 0.0},
        {"softcap": float("inf")},
        {"causal_alignment": "top-right"},
    ]
    assert (
        refusals_of(lambda settings: attention(*[torch.ones(1, 1, 4, 8)] * 3, impl="tiled", **settings), of=asked)
        == snapshot
    )


def test_a_feature_that_a_variant_lacks_is_refused_with_those_that_have_it() -> None:
    q = torch.ones(1, 2, 4, 8)
    with pytest.raises(
        NotImplementedError, match=r"'sdpa' has no softcap and no window; choose one of: reference, naive"
    ):
        attention(q, q, q, impl="sdpa", softcap=3.0, window_size=(1, 0))


def test_what_variants_claim_are_features_that_there_are() -> None:
    assert all(claims.features <= {*FEATURES, DROPOUT} for claims in IMPLEMENTATIONS.values())


def test_with_equal_lengths_both_alignments_are_one_and_nobody_need_claim_it() -> None:
    q = torch.randn(1, 2, 9, 8)
    top, bottom = (
        attention(q, q, q, impl="sdpa", is_causal=True, causal_alignment=alignment)
        for alignment in ("top-left", "bottom-right")
    )
    assert torch.equal(top, bottom)
