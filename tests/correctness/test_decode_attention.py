"""Attention over a cache, in PyTorch and Triton: right for every length, page and scale, and its errors.

Shapes as in decode_cases.py. That `attention(impl="decode")` and "triton-decode" are right, with every feature and
length, is in test_attention_suite.py.
"""

from functools import partial
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from perflab.lab.attention import attention, decode_attention, reference_attention
from perflab.lab.attention.decode import Stored, merge_splits, split_attention, split_length
from perflab.lab.attention.scoring import Scoring
from perflab.lab.attention.triton_decode import decode_attention_op, decode_launch, decode_tiles, splits_of
from perflab.lab.launch import SHARED_BYTES
from tests.correctness.refusals import refusal_of

from .decode_cases import CAPACITY, CASES, SHARP, Case, hold, in_each_sequence
from .wrong_decode_kernels import WRONG_KERNELS, Decode, WrongKernel

pytestmark = pytest.mark.correctness

IMPLS = ("torch", "triton")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_query_sees_what_the_definition_says(case: Case, device: torch.device) -> None:
    hold(case, decode_attention, device)


@pytest.mark.parametrize("case", SHARP, ids=str)
def test_so_does_the_kernel(case: Case, device: torch.device) -> None:
    hold(case, partial(decode_attention, impl="triton"), device)


@pytest.mark.parametrize("wrong", WRONG_KERNELS, ids=lambda wrong: wrong.name)
def test_a_wrong_kernel_is_caught(wrong: WrongKernel, device: torch.device) -> None:
    with pytest.raises(AssertionError, match=wrong.clue):
        hold(wrong.case, wrong.make(), device)


@pytest.mark.parametrize("case", sorted({wrong.case for wrong in WRONG_KERNELS}, key=str), ids=str)
def test_the_same_kernel_without_its_faults_passes(case: Case, device: torch.device) -> None:
    hold(case, Decode(), device)


def test_every_length_up_to_300_is_right(device: torch.device) -> None:
    """In one batch: each page and split boundary, one before and one behind it."""
    case = Case(2, (2, 1), torch.float64, 4, paged=True, sequences=tuple(range(301)))
    inputs = case.inputs(0, device)
    wanted = in_each_sequence(reference_attention)(**inputs)[0]
    torch.testing.assert_close(decode_attention(**inputs), wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("impl", IMPLS)
def test_what_sees_nothing_is_zero_and_minus_infinity(impl: str, device: torch.device) -> None:
    """No key at all, and more queries than keys: the first stand before the first key."""
    inputs = Case(5, sequences=(0, 3)).inputs(0, device)
    out = decode_attention(**inputs, impl=impl)
    assert not out[0].any()
    assert not out[1, :, :2].any()
    assert out[1, :, 2:].ne(0).any(dim=-1).all()
    q, keys, values, lengths = inputs.values()
    if impl == "torch":
        ends = split_attention(q, Stored(keys, values, lengths), Scoring(1.0, None, None, 0))[1]
    else:
        ends = decode_attention_op(q, keys, values, lengths, None, None, None, 1.0, None, None, 0)[1]
    assert torch.equal(
        ends == -torch.inf, torch.tensor([[True] * 5, [True] * 2 + [False] * 3], device=device)[:, None].expand_as(ends)
    )


@pytest.mark.parametrize("impl", IMPLS)
def test_a_length_beyond_the_capacity_counts_as_the_capacity(impl: str, device: torch.device) -> None:
    inputs = Case(1, head_dim=16, sequences=(CAPACITY,)).inputs(0, device)
    beyond = inputs | {"lengths": inputs["lengths"] + 1000}
    assert torch.equal(decode_attention(**inputs, impl=impl), decode_attention(**beyond, impl=impl))


def test_splits_of_disjoint_keys_merge_to_the_whole(device: torch.device) -> None:
    drawn = torch.Generator(device).manual_seed(0)
    scores, values = (torch.randn(4, size, generator=drawn, device=device, dtype=torch.float64) for size in (30, 30))
    parts, ends = zip(
        *(
            ((scores[:, cut].softmax(-1) * values[:, cut]).sum(-1, keepdim=True), scores[:, cut].logsumexp(-1))
            for cut in (slice(0, 3), slice(3, 29), slice(29, 30))
        ),
        strict=True,
    )
    nothing = torch.zeros_like(parts[0]), torch.full_like(ends[0], -torch.inf)
    out, logsumexp = merge_splits(torch.stack([*parts, nothing[0]]), torch.stack([*ends, nothing[1]]))
    torch.testing.assert_close(out[:, 0], (scores.softmax(-1) * values).sum(-1))
    torch.testing.assert_close(logsumexp, scores.logsumexp(-1))
    out, logsumexp = merge_splits(torch.stack([nothing[0]] * 2), torch.stack([nothing[1]] * 2))
    assert not out.any()
    assert (logsumexp == -torch.inf).all()


@pytest.mark.parametrize(
    ("capacity", "tiles", "wanted"),
    [(1, 1, 128), (129, 1, 128), (8192, 128, 4096), (8192, 1, 128), (8192, 999, 8192), (100_000, 4, 1664)],
)
def test_splits_are_whole_tiles_and_fill_the_multiprocessors(capacity: int, tiles: int, wanted: int) -> None:
    assert split_length(capacity, tiles) == wanted


def test_grouped_heads_share_one_read_and_the_grid_is_that_of_the_capacity() -> None:
    """Eight query heads of one key head are rows of one tile: as many programs as key heads and splits."""
    q, keys = torch.empty(2, 16, 1, 64, device="meta"), torch.empty(2, 512, 2, 64, device="meta")
    stored = Stored(keys, keys, lengths=torch.empty(2, dtype=torch.int32, device="meta"))
    tiles = decode_tiles(q, 2, SHARED_BYTES[90])
    num_splits, split_keys = splits_of(q, stored, tiles)
    launch = decode_launch(q, stored, torch.empty(num_splits, *q.shape), q, Scoring(1.0, None, None, 0), tiles)
    assert (num_splits, split_keys, tiles.block_q) == (4, 128, 16)
    assert launch.grid == (2 * 2 * 4,)


def test_the_operator_keeps_what_operators_promise(device: torch.device) -> None:
    """Schema, fake implementation, no alias, nothing changed."""
    inputs = Case(1, (1, 1), head_dim=16, paged=True, int8=True, sequences=(20,)).inputs(0, device)
    names = ("q", "keys", "values", "lengths", "pages", "key_scales", "value_scales")
    given = (*(inputs[name] for name in names), 0.25, 3.0, -7, 0)
    torch.library.opcheck(decode_attention_op, given, test_utils=("test_schema", "test_faketensor"))


def test_compiled_code_sees_through_it_and_its_products_are_counted() -> None:
    """On `meta`, so nothing runs: two products of 2 D operations for each query, key and head, at most."""
    given = Case(2, (4, 2), head_dim=16, sequences=(9,)).inputs(0, torch.device("meta"))
    decode = partial(decode_attention, impl="triton")
    assert torch.compile(decode, backend="eager", fullgraph=True)(**given).shape == given["q"].shape
    with FlopCounterMode(display=False) as counter:
        decode(**given)
    assert counter.get_total_flops() == 4 * 4 * 2 * CAPACITY * 16


def test_nothing_waits_for_the_device_and_lengths_may_change_between_replays(device: torch.device) -> None:
    if device.type != "cuda":  # what a graph replays is fixed by shapes: the plain one on `meta` reads no value either
        inputs = Case(1).inputs(0, torch.device("meta"))
        assert decode_attention(**inputs).shape == inputs["q"].shape
        return
    inputs, other = (Case(1).inputs(seed, device) for seed in (0, 1))
    decode_attention(**inputs, impl="triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode_attention(**inputs, impl="triton")
    for name, tensor in inputs.items():
        tensor.copy_(other[name])
    graph.replay()
    assert torch.equal(out, decode_attention(**other, impl="triton"))


def test_autocast_leaves_the_precision_to_the_inputs(device: torch.device) -> None:
    inputs = Case(1, sequences=(200,)).inputs(0, device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        found = decode_attention(**inputs)
    assert torch.equal(found, decode_attention(**inputs))


def given(**changes: Any) -> dict[str, Any]:
    tensors: dict[str, Any] = {
        "q": torch.ones(2, 4, 1, 8), "keys": torch.ones(2, 9, 2, 8), "values": torch.ones(2, 9, 2, 8),
        "lengths": torch.tensor([3, 4]),
    }  # fmt: skip
    return tensors | changes


INT8 = {"keys": torch.ones(2, 9, 2, 8, dtype=torch.int8), "values": torch.ones(2, 9, 2, 8, dtype=torch.int8)}
SCALES = {name: torch.ones(2, 9, 2) for name in ("key_scales", "value_scales")}


def test_what_does_not_fit_is_refused_with_the_remedy(snapshot: SnapshotAssertion) -> None:
    asked: list[dict[str, Any]] = [
        {"impl": "cuda"},
        {"window": 0},
        {"softcap": -1.0},
        {"q": torch.ones(4, 1, 8)},
        {"q": torch.ones(2, 3, 1, 8)},
        {"q": torch.ones(3, 4, 1, 8)},
        {"pages": torch.ones(2, dtype=torch.int32)},
        {"lengths": torch.tensor([3])},
        INT8 | {"key_scales": SCALES["key_scales"]},
        INT8 | SCALES | {"key_scales": torch.ones(2, 9)},
        INT8,
        SCALES,
        INT8 | {name: x.int() for name, x in SCALES.items()},
        {"lengths": torch.tensor([3.0, 4.0])},
        {"pages": torch.ones(2, 1)},
        {"q": torch.ones(2, 4, 1, 8, dtype=torch.float64), "impl": "triton"},
        {"lengths": torch.tensor([3, 4], device="meta")},
        {"q": torch.ones(2, 4, 1, 8, requires_grad=True)},
        {
            "q": torch.ones(2, 4, 1, 257),
            "keys": torch.ones(2, 9, 2, 257),
            "values": torch.ones(2, 9, 2, 257),
            "impl": "triton",
        },
    ]
    assert [refusal_of(lambda one=one: decode_attention(**given(**one))) for one in asked] == snapshot


@pytest.mark.parametrize("impl", ["decode", "triton-decode"])
def test_gradients_are_refused_with_the_variants_that_have_them(impl: str, device: torch.device) -> None:
    q: Tensor = torch.ones(1, 1, 4, 16, device=device, requires_grad=True)
    with pytest.raises(NotImplementedError, match=f"'{impl}' has no backward on .*; .*choose one of: reference, naive"):
        attention(q, q, q, impl=impl)
