"""Ranks of worlds that are not here: where collectives do not match, what they take at least, who may be played."""

from __future__ import annotations

import pytest
from torch import distributed

from perflab.base.errors import UsageError
from perflab.measure.counts.collectives import Collective, seeing_collectives
from perflab.predicted.gpus import parse_gpu
from perflab.predicted.settings import Predicting
from perflab.predicted.world.lone_rank import FAKE, LoneRank, find_mismatches, lone_rank, playing
from perflab.predicted.world.network import LINKS, NETWORKS, communication_on, exchanged_by_line, parse_network

ALL = tuple(range(16))
MIB = 1 << 20


def made(kind: str, size_bytes: int = MIB, ranks: tuple[int, ...] = ALL, **others: object) -> Collective:
    group = "" if ranks == ALL else f"{len(ranks)} of 16"
    told = {"peer": None, "line": f"{kind}.py:1", "dtype": "float32", **others}
    peer, line, dtype = told["peer"], str(told["line"]), str(told["dtype"])
    assert peer is None or isinstance(peer, int)
    return Collective(kind, dtype, size_bytes, group, False, ranks, peer, line)


REDUCE, GATHER = made("all_reduce"), made("all_gather")


def test_equal_ranks_match_whatever_others_do_among_themselves() -> None:
    ranks = {
        0: [REDUCE, GATHER, made("all_reduce", ranks=(0, 1))],
        15: [REDUCE, made("barrier", ranks=(14, 15)), GATHER],
    }
    assert find_mismatches(ranks) == []


@pytest.mark.parametrize(
    ("second", "number", "first_told", "second_told"),
    [
        ([GATHER, REDUCE], 1, "all_reduce of 1.00 MiB float32, all ranks", "all_gather of 1.00 MiB float32, all ranks"),
        ([REDUCE, made("all_gather", 2 * MIB)], 2, "all_gather of 1.00 MiB", "all_gather of 2.00 MiB float32"),
        (
            [REDUCE, made("all_gather", ranks=(0, 15))],
            2,
            "all_gather of 1.00 MiB float32, all",
            "float32, ranks 2 of 16",
        ),
        ([REDUCE, made("all_gather", dtype="int32")], 2, "1.00 MiB float32", "1.00 MiB int32"),
        ([REDUCE], 2, "all_gather of 1.00 MiB", ""),
        ([REDUCE, GATHER, made("barrier", 0, dtype="")], 3, "", "barrier, all ranks"),
    ],
)
def test_the_first_that_differs_is_told_of_both_ranks(
    second: list[Collective], number: int, first_told: str, second_told: str
) -> None:
    (found,) = find_mismatches({0: [REDUCE, GATHER], 15: second})
    assert (found.number, found.rank, found.other_rank) == (number, 0, 15)
    assert first_told in found.collective
    assert second_told in found.other_collective
    assert bool(found.collective) == bool(found.line)
    assert bool(found.other_collective) == bool(found.other_line)


def test_messages_between_two_ranks_have_to_be_taken_in_their_size_and_order() -> None:
    sends = [made("send", size, peer=15) for size in (8, 16)]
    takes = [made("recv", size, peer=0) for size in (8, 16)]
    assert find_mismatches({0: [REDUCE, *sends], 15: [takes[0], REDUCE, takes[1]]}) == []
    (found,) = find_mismatches({0: sends, 15: takes[::-1]})
    assert "send of 8 B float32, rank 15" in found.collective
    assert "recv of 16 B float32, rank 0" in found.other_collective
    assert find_mismatches({0: sends, 15: takes[:1]})[0].other_collective == ""
    assert find_mismatches({0: sends, 15: [made("recv", 8), made("recv", 16)]}) == [], "from any rank"


def test_roots_and_uneven_parts_may_differ_in_size_and_each_pair_of_ranks_is_compared() -> None:
    assert find_mismatches({0: [made("gather", 16 * MIB)], 15: [made("gather", MIB)]}) == []
    found = find_mismatches({0: [REDUCE], 7: [], 15: [REDUCE]})
    assert [(one.rank, one.other_rank) for one in found] == [(0, 7), (7, 15)]


@pytest.mark.parametrize(
    ("one", "sent_bytes", "seconds"),
    [
        # 8 ranks in one node: nccl-tests' bus bandwidths over NVLink.
        (made("all_reduce", 8 * MIB, tuple(range(8))), 14 * MIB, 14 * MIB / 450e9),
        (made("all_gather", 8 * MIB, tuple(range(8))), 7 * MIB, 7 * MIB / 450e9),
        (made("broadcast", MIB, tuple(range(8))), MIB, MIB / 450e9),
        # 16 ranks in two nodes: half of S has to come into a node, through eight ports of 50 GB/s.
        (made("all_gather", 16 * MIB), 15 * MIB, max(15 * MIB / 450e9, 8 * MIB / (8 * 50e9))),
        (made("all_reduce", 16 * MIB), 30 * MIB, 2 * max(15 * MIB / 450e9, 8 * MIB / (8 * 50e9))),
        (made("all_to_all", 16 * MIB), 15 * MIB, 8 * MIB / 50e9),
        # One rank of each node: no NVLink, and a port for each.
        (made("all_gather", 2 * MIB, (0, 8)), MIB, MIB / 50e9),
        (made("send", MIB, peer=15), MIB, MIB / 50e9),
        (made("send", MIB, peer=1), MIB, MIB / 450e9),
        (made("barrier", 0), 0, 0.0),
        (made("all_reduce", MIB, (3,)), 0, 0.0),
    ],
)
def test_the_least_time_is_that_of_the_bytes_that_have_to_pass(
    one: Collective, sent_bytes: int, seconds: float
) -> None:
    found = communication_on(parse_network("dgx-h100"), [one, one], parse_gpu("h100"))
    assert found.sent_bytes == 2 * sent_bytes
    assert found.bound_ns == pytest.approx(2e9 * seconds)
    assert list(found.by_kind) == [one.kind]


def test_networks_have_names_or_sizes_and_gpus_without_a_known_link_have_no_bound() -> None:
    assert parse_network("4x100").port_bytes_per_s == 12.5e9
    assert all(one.source for one in NETWORKS.values())
    for wrong in ("", "8", "0x400", "8x0", "infiniband"):
        with pytest.raises(ValueError, match="dgx-h100"):
            parse_network(wrong)
    assert communication_on(parse_network("p5"), [REDUCE], parse_gpu("m4")) is None
    assert all(parse_gpu(name).name == name for name in LINKS)


def test_collectives_are_summed_up_by_line() -> None:
    rows = exchanged_by_line([REDUCE, GATHER, GATHER, made("barrier", 0, dtype="", line="")])
    assert [(one.kind, one.line, one.calls, one.size_bytes >> 20) for one in rows] == [
        ("all_gather", "all_gather.py:1", 2, 2),
        ("all_reduce", "all_reduce.py:1", 1, 1),
        ("barrier", "backward", 1, 0),
    ]


def test_the_first_and_the_last_rank_are_played_unless_others_are_asked_for() -> None:
    def ranks(*asked: int) -> list[int]:
        return Predicting(parse_gpu("h100"), False, asked, parse_network("8x400")).ranks_of(8)

    assert ranks() == [0, 7]
    assert ranks(3, 0) == [3, 0]
    with pytest.raises(UsageError, match=r"--perf-ranks=8: the case has 8 ranks, 0 to 7"):
        ranks(0, 8)


def test_a_lone_rank_has_groups_without_peers_and_leaves_them() -> None:
    assert lone_rank() is None
    with playing(LoneRank(5, 8), FAKE):
        assert (distributed.get_rank(), distributed.get_world_size()) == (5, 8)
        pair = distributed.new_group([5, 6])
        assert distributed.get_rank(pair) == 0
        distributed.barrier(pair)
        known = lone_rank()
        assert known is not None
        assert [(one.kind, one.ranks) for one in known.seen.collectives[-1:]] == [("barrier", (5, 6))]
    assert not distributed.is_initialized()
    with seeing_collectives() as seen:
        assert seen.counts()["collectives"] == 0
