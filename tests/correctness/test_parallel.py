"""The lab's data-parallel training: in two ranks bit for bit as in one process, and wrong exchanges are noticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from perflab.correctness import in_ranks
from perflab.lab.parallel import EXCHANGES
from perflab.lab.parallel.exchange import IN_PARTS, ONE_BATCH
from perflab.lab.train import TrainingConfig, TrainingStep

from . import parallel_training
from .parallel_training import FAULTS, State, Variant, variant_of

pytestmark = [pytest.mark.correctness, pytest.mark.usefixtures("warm_ranks")]
SMALL_BUCKETS = {"bucket_mb": 0.02}
REPLICATED = [name for name in EXCHANGES if name not in IN_PARTS]
BIT_FOR_BIT = [*REPLICATED, "zero3"]
OWN = [name for name in BIT_FOR_BIT if name != "ddp"]
EXACT = {
    **{name: Variant(name) for name in BIT_FOR_BIT},
    "bucketed, small buckets": Variant("bucketed", switches=SMALL_BUCKETS),
    "ddp, small buckets": Variant("ddp", switches=SMALL_BUCKETS),
    **{
        f"{name}, tied head, frozen block, unused parameter": Variant(
            name, {"tied_head": True}, kind="frozen and unused", switches=SMALL_BUCKETS
        )
        for name in BIT_FOR_BIT
    },
    **{f"{name}, used by one rank": Variant(name, kind="used by one", switches=SMALL_BUCKETS) for name in OWN},
    **{f"{name}, sharded state": Variant(name, switches={"shard_optimizer": True}) for name in REPLICATED},
    "sharded state, unused parameter": Variant("flat", kind="unused", switches={"shard_optimizer": True}),
    "checkpointing": Variant("bucketed", switches={"checkpointing": "every-block", **SMALL_BUCKETS}),
    "zero3, checkpointing": Variant("zero3", switches={"checkpointing": "every-block"}),
    **{f"{name}, bf16": Variant(name, switches={"precision": "bf16"}) for name in ("bucketed", "zero3")},
}
"""Trainings in two ranks with the bits of one process that adds the same two gradients."""
ROUNDED = {
    **{f"{name}, two micro-batches": Variant(name, switches={"micro_batches": 2}) for name in EXCHANGES},
    **{f"{name}, uneven batches": Variant(name, rows=(1, 4)) for name in EXCHANGES if name not in ONE_BATCH},
    **{f"{name}, clipped": Variant(name, switches={"max_grad_norm": 0.1}) for name in EXCHANGES},
    "fsdp2": Variant("fsdp2"),
    "tensor": Variant("tensor"),
    "tensor, GELU": Variant("tensor", {"feed_forward": "gelu"}),
    "tensor, checkpointing": Variant("tensor", switches={"checkpointing": "every-block"}),
    "fsdp2, tied head": Variant("fsdp2", {"tied_head": True}),
    "fsdp2, frozen block": Variant("fsdp2", kind="frozen"),
    "sharded state, clipped": Variant("flat", switches={"max_grad_norm": 0.1, "shard_optimizer": True}),
}
"""Trainings whose sums have another order in two ranks than in one process."""
AdamW_MOMENTS = (" exp_avg", " exp_avg_sq")


@pytest.fixture(scope="module")
def trained(warm_ranks: None) -> dict[str, list[State]]:
    """The states of all ranks by variant."""
    variants = {**EXACT, **ROUNDED}
    ranks = in_ranks(parallel_training.in_this_rank, 2, list(variants.values()), threads=1)
    return {name: list(states) for name, *states in zip(variants, *ranks, strict=True)}


def together(states: list[State]) -> State:
    """The state of all ranks, which have to agree where more than one has a part."""
    whole: State = {}
    for state in states:
        for name, tensor in state.items():
            assert torch.equal(tensor, whole.setdefault(name, tensor)), f"ranks differ in {name}"
    return whole


def distance(got: State, wanted: Mapping[str, Tensor]) -> float:
    """The largest difference of a tensor, as a share of its norm; those of moments that are all zero left out."""
    assert got.keys() == wanted.keys()
    return max(
        float((got[name] - wanted[name]).norm() / wanted[name].norm()) for name in wanted if wanted[name].norm() > 0
    )


@pytest.mark.parametrize("name", EXACT)
def test_two_ranks_have_the_bits_of_one_process(trained: dict[str, list[State]], name: str) -> None:
    got, (wanted,) = together(trained[name]), parallel_training.alone([EXACT[name]])
    assert got.keys() == wanted.keys()
    assert [key for key in wanted if not torch.equal(got[key], wanted[key])] == []
    if "sharded" in name:
        moments = [sum(key.endswith(AdamW_MOMENTS[0]) for key in state) for state in trained[name]]
        assert min(moments) > 0
        assert sum(moments) == sum(key.endswith(AdamW_MOMENTS[0]) for key in wanted), "each state in one rank only"


@pytest.mark.parametrize("name", ROUNDED)
def test_two_ranks_are_one_process_but_for_the_order_of_sums(trained: dict[str, list[State]], name: str) -> None:
    (wanted,) = parallel_training.alone([ROUNDED[name]])
    # The moments are sums of gradients: three steps of some 25 rows each, with float32's 6e-8 at every addition. A
    # parameter moves by AdamW's sign of them: 1e-2 a step, whose direction rounding turns where a gradient is near 0.
    got = together(trained[name])
    moments = {key: tensor for key, tensor in wanted.items() if key.endswith(AdamW_MOMENTS)}
    assert distance({key: got[key] for key in moments}, moments) < 1e-4
    assert distance(got, wanted) < 1e-2


def test_a_checkpoint_of_two_ranks_is_taken_up_by_any_number(tmp_path: Path) -> None:
    writers = ("flat", "flat, sharded state", "zero3", "fsdp2")
    readers = ("bucketed", "flat, sharded state", "zero3", "fsdp2", "tensor")
    in_ranks(parallel_training.saved, 2, str(tmp_path), writers, threads=1)
    of_one = dict(zip(writers, parallel_training.resumed(str(tmp_path), writers, ["none"]), strict=True))
    (uninterrupted,) = parallel_training.alone([Variant("flat")])
    for writer in writers[:-1]:
        assert all(torch.equal(of_one[writer][name], uninterrupted[name]) for name in uninterrupted), writer
    assert distance(of_one["fsdp2"], uninterrupted) < 1e-2, "it sums in another order"

    pairs = [(writer, reader) for writer in writers for reader in readers]
    of_two = in_ranks(parallel_training.resumed, 2, str(tmp_path), writers, readers, threads=1)
    for (writer, reader), *states in zip(pairs, *of_two, strict=True):
        got, wanted = together(states), of_one[writer]
        assert distance(got, wanted) < 1e-2
        assert reader in ("fsdp2", "tensor") or all(torch.equal(got[name], wanted[name]) for name in wanted), (
            writer,
            reader,
        )
    of_four = in_ranks(parallel_training.resumed, 4, str(tmp_path), writers, ["zero3"], threads=1)
    for writer, *states in zip(writers, *of_four, strict=True):
        moments = {key: tensor for key, tensor in of_one[writer].items() if key.endswith(AdamW_MOMENTS)}
        got = together(states)
        assert distance({key: got[key] for key in moments}, moments) < 1e-4


@pytest.fixture(scope="module")
def three(warm_ranks: None) -> list[Any]:
    """What each of three ranks says."""
    return in_ranks(parallel_training.in_three, 3, threads=1)


def test_models_that_cannot_be_divided_are_refused(three: list[Any], snapshot: SnapshotAssertion) -> None:
    assert three[0][0] == snapshot


def test_a_state_of_another_model_is_refused() -> None:
    step = TrainingStep(parallel_training.make_model(Variant("flat")), parallel_training.shard(0, 2))
    with pytest.raises(ValueError, match=r"the state is of another model: TransformerLM has no head\.bias"):
        step.resume({"optimizer": {"head.bias": {}}, "steps_done": 1, "scaler": {}})


def test_three_ranks_have_the_mean_of_their_gradients_and_none_where_nobody_has_any(three: list[Any]) -> None:
    ranks = [means for _, means in three]
    for name, gradients in ranks[0].items():
        for number, got in enumerate(gradients):
            assert all(torch.equal(got, other[name][number]) for other in ranks if got is not None)
            if number == 2:
                assert all(other[name][number] is None for other in ranks), "nobody has used it"
                continue
            parts = [parallel_training.known_gradient(rank, number, got.shape).double() for rank in range(3)]
            parts = [part * (0.0 if (number, rank) == (1, 1) else 1.0) for rank, part in enumerate(parts)]
            # Two additions and a division, each rounded: at most 3 eps of the sum of magnitudes, over 3.
            limit = 3 * torch.finfo(torch.float32).eps * sum(part.abs() for part in parts) / 3
            assert ((got.double() - sum(parts) / 3).abs() <= limit).all()


def test_many_ranks_are_one_process_but_for_the_order_of_sums() -> None:
    worlds = {8: ["naive", "overlapped", "bucketed"], 64: ["flat"]}
    (found,) = in_ranks(parallel_training.in_worlds, 1, worlds, threads=1)
    assert len(found) == 4
    for name, (is_same, got, wanted) in found.items():
        assert is_same, f"{name}: the ranks differ"
        moments = {key: tensor for key, tensor in wanted.items() if key.endswith(AdamW_MOMENTS)}
        assert distance({key: got[key] for key in moments}, moments) < 1e-4


@pytest.fixture(scope="module")
def two(warm_ranks: None) -> list[dict[str, Any]]:
    """What each of two ranks says of exchanges by themselves."""
    return in_ranks(parallel_training.by_themselves, 2, threads=1)


def test_a_rank_counts_by_its_tokens_and_exactly_one_where_all_have_as_many(two: list[dict[str, Any]]) -> None:
    assert [one["weights"] for one in two] == [[pytest.approx(2 / 3), 1.0], [pytest.approx(4 / 3), 1.0]]


def test_a_step_that_one_rank_has_to_skip_is_skipped_by_all(two: list[dict[str, Any]]) -> None:
    assert [one["skipped"] for one in two] == [(1, True), (1, True)]


def test_a_bucket_starts_once_its_layer_is_done_and_only_in_the_last_pass(two: list[dict[str, Any]]) -> None:
    layers = ("layer 2", "layer 1", "layer 0")
    early, last = two[0]["orders"]
    assert early == layers
    assert last == tuple(one for layer in layers for one in (layer, "all-reduce of 272"))


@pytest.fixture(scope="module")
def wrong(warm_ranks: None) -> dict[str, list[State]]:
    """The states of all ranks by fault."""
    ranks = in_ranks(parallel_training.with_faults, 2, [variant_of(fault) for fault in FAULTS], threads=1)
    return {fault.__name__: list(states) for fault, *states in zip(FAULTS, *ranks, strict=True)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_wrong_exchange_is_noticed(wrong: dict[str, list[State]], fault: type) -> None:
    states, (wanted,) = wrong[fault.__name__], parallel_training.alone([variant_of(fault)])
    agree = all(torch.equal(states[0][name], states[1][name]) for name in states[0].keys() & states[1].keys())
    got = {**states[1], **states[0]}
    moments = {key: tensor for key, tensor in wanted.items() if key.endswith(AdamW_MOMENTS)}
    is_same = agree and got.keys() == wanted.keys() and distance({k: got[k] for k in moments}, moments) < 1e-4
    assert not is_same


@pytest.mark.parametrize(
    "switches",
    [
        {"shard_optimizer": True},
        {"exchange": "bucketd"},
        {"exchange": "ddp", "bucket_mb": -1.0},
        {"exchange": "flat", "compile": "reduce-overhead"},
        {"exchange": "fsdp2", "shard_optimizer": True},
        {"exchange": "zero3", "shard_optimizer": True},
        {"exchange": "zero3", "precision": "fp16"},
        {"exchange": "zero3", "compile": "default"},
        {"exchange": "tensor", "precision": "fp16"},
        {"exchange": "flat", "shard_optimizer": True, "precision": "fp16"},
    ],
    ids=lambda switches: "-".join(map(str, switches.values())),
)
def test_combinations_that_make_no_sense_are_refused(switches: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        TrainingConfig(**switches)
    assert str(caught.value) == snapshot


def test_an_exchange_without_a_process_group_says_what_to_call() -> None:
    model = parallel_training.make_model(Variant("flat"))
    make: Callable[[], object] = lambda: TrainingStep(  # noqa: E731
        model, parallel_training.shard(0, 2), TrainingConfig(exchange="flat")
    )
    with pytest.raises(RuntimeError, match=r"init_process_group\(\) first"):
        make()
