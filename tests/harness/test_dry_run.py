"""Dry runs: what is ordered among streams, how kernels and races are named, and what fails a case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.base.gpu_names import kernel_name
from perflab.predicted.dry_run.races import Access, Order
from perflab.predicted.judge.explanation import explain_broken, explain_dry_run, unless_broken
from perflab.predicted.judge.judge import baseline_of, judge_predicted
from perflab.results.predicted import DryRun, Mismatch, Prediction, Race, Traffic
from perflab.results.records import Policy, Verdict

MAIN, SIDE, THIRD = 0, 7, 9


class Seen:
    """An order, and the races that it told: what, the earlier stream, the later one."""

    def __init__(self) -> None:
        self.races: list[tuple[str, int, int | None]] = []
        self.order = Order(self._note)

    def _note(self, what: str, before: Access, now: Access | tuple[str, ...]) -> None:
        self.races.append((what, before.stream, now.stream if isinstance(now, Access) else None))

    def reads(self, stream: int, tensor: int = 100) -> None:
        self.order.launch(stream, "aten::add", ("here",), [(tensor, tensor)], [])

    def writes(self, stream: int, tensor: int = 100) -> None:
        self.order.launch(stream, "aten::mul", ("here",), [], [(tensor, tensor)])

    def free(self, tensor: int = 100) -> None:
        self.order.free(tensor, lambda: ("there",))


Step = tuple[str, *tuple[int, ...]]
RACE = [("access", MAIN, SIDE)]
HELD = [("allocate", 100, MAIN), ("reads", SIDE), ("free",)]
"""Memory of one stream that another still reads when it is given back."""

ORDERS: dict[str, tuple[list[Step], list[tuple[str, int, int | None]]]] = {
    "one stream": ([("writes", MAIN), ("reads", MAIN), ("writes", MAIN)], []),
    "two reads": ([("reads", MAIN), ("reads", SIDE)], []),
    "a write beside a read": ([("reads", MAIN), ("writes", SIDE)], RACE),
    "a write beside a write": ([("writes", MAIN), ("writes", SIDE)], RACE),
    "a read beside a write": ([("writes", MAIN), ("reads", SIDE)], RACE),
    "an event": ([("writes", MAIN), ("record", 1, MAIN), ("wait", 1, SIDE), ("writes", SIDE)], []),
    "an event by another stream": (
        [
            *[("writes", MAIN), ("record", 1, MAIN), ("wait", 1, THIRD)],
            *[("record", 2, THIRD), ("wait", 2, SIDE), ("writes", SIDE)],
        ],
        [],
    ),
    "the host for the event": (
        [("writes", MAIN), ("record", 1, MAIN), ("host_waits_for_event", 1), ("writes", SIDE)],
        [],
    ),
    "the host for the stream": ([("writes", MAIN), ("host_waits_for_stream", MAIN), ("writes", SIDE)], []),
    "the host for the device": ([("writes", MAIN), ("host_waits",), ("writes", SIDE)], []),
    "an event before the write": ([("record", 1, MAIN), ("writes", MAIN), ("wait", 1, SIDE), ("reads", SIDE)], RACE),
    "an event that was never recorded": ([("writes", MAIN), ("wait", 1, SIDE), ("reads", SIDE)], RACE),
    "freed memory": (HELD, []),
    "freed memory, and new of another stream": ([*HELD, ("allocate", 200, SIDE)], []),
    "freed memory, and new of its stream": ([*HELD, ("allocate", 200, MAIN)], [("freed", SIDE, None)]),
    "freed memory whose stream has waited": (
        [*HELD, ("record", 1, SIDE), ("wait", 1, MAIN), ("allocate", 200, MAIN)],
        [],
    ),
    "freed memory that the allocator keeps": (
        [*HELD[:2], ("keep_for", 100, SIDE), ("free",), ("allocate", 200, MAIN)],
        [],
    ),
    "new memory at an old address": (
        [("allocate", 100, MAIN), ("writes", MAIN), ("free",), ("allocate", 100, SIDE), ("writes", SIDE)],
        [],
    ),
}


@pytest.mark.parametrize(("steps", "races"), ORDERS.values(), ids=ORDERS)
def test_what_does_not_wait_for_a_write_or_its_stream_races(
    steps: list[Step], races: list[tuple[str, int, int | None]]
) -> None:
    seen = Seen()
    for what, *arguments in steps:
        getattr(seen if hasattr(seen, what) else seen.order, what)(*arguments)
    assert seen.races == races


@given(st.lists(st.tuples(st.sampled_from([MAIN, SIDE, THIRD]), st.booleans(), st.integers(0, 2)), max_size=30))
def test_with_the_host_waiting_after_each_kernel_nothing_races(steps: list[tuple[int, bool, int]]) -> None:
    seen = Seen()
    for stream, writes, tensor in steps:
        (seen.writes if writes else seen.reads)(stream, tensor)
        seen.order.host_waits()
    assert seen.races == []


POLICY = Policy(threshold=0.05, memory_threshold=0.0, floor_ns=2000.0)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
            "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
            "vectorized_elementwise_kernel<4, FillFunctor<float>>",
        ),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
            "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::"
            "operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
            "elementwise_kernel<128, 4, direct_copy_kernel_cuda{BFloat16}>",
        ),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float*)",
            "vectorized_layer_norm_kernel<float, float, false>",
        ),
        ("cublasGemmEx", "cublasGemmEx"),
        ("_my_triton_kernel", "_my_triton_kernel"),
        ("k" * 200, "k" * 79 + "…" + "k" * 40),
    ],
)
def test_a_kernel_is_named_by_what_tells_it_from_others(kernel: str, name: str) -> None:
    assert kernel_name(kernel) == name


def prediction(*traffic: Traffic, races: tuple[Race, ...] = (), reserved: int = 100, **kernels: int) -> Prediction:
    dry = DryRun(asked_bytes=80, kernels=kernels, traffic=list(traffic), races=list(races), host_ns=1e6)
    return Prediction(
        gpu="h100",
        torch="2.13.0",
        peak_bytes=90,
        held_bytes=10,
        composition={"inputs": 90},
        at_peak=[],
        costs=[],
        allocated_bytes=95,
        reserved_bytes=reserved,
        launches=sum(kernels.values()),
        dry_run=dry,
    )


def test_the_same_is_ok_and_less_is_improved() -> None:
    baseline = baseline_of(prediction(add=3), recorded="2026-01-01")
    assert judge_predicted(prediction(add=3), baseline, POLICY).verdict is Verdict.OK
    assert judge_predicted(prediction(add=2), baseline, POLICY).verdict is Verdict.IMPROVED


@pytest.mark.parametrize(
    ("now", "worse", "said"),
    [
        (prediction(add=3, copy=1), ["launches"], ["launches of copy: 0 -> 1"]),
        (prediction(add=3, reserved=101), ["reserved"], []),
        (
            prediction(Traffic(what="wait", line="a.py:3", function="cudaStreamSynchronize", calls=2), add=3),
            ["waits"],
            ["a.py:3: the host waits for the device, 2 times (cudaStreamSynchronize)"],
        ),
        (
            prediction(Traffic("to the device", "a.py:4", "cudaMemcpyAsync", 1, 2048), add=3),
            ["to_device"],
            ["a.py:4: 2.00 KiB to the device, 1 time (cudaMemcpyAsync)"],
        ),
    ],
)
def test_each_quantity_is_exact_and_its_cause_is_named(now: Prediction, worse: list[str], said: list[str]) -> None:
    baseline = baseline_of(prediction(add=3), recorded="2026-01-01")
    judgement = judge_predicted(now, baseline, POLICY)
    assert (judgement.verdict, judgement.worse) == (Verdict.REGRESSED, worse)
    assert explain_dry_run(now, baseline, judgement.worse) == said
    assert judgement.reasons == said


def test_counts_that_are_not_gated_are_shown_only() -> None:
    baseline = baseline_of(prediction(add=3), recorded="2026-01-01")
    shown = Policy(threshold=0.05, memory_threshold=0.0, floor_ns=2000.0, gate_counts=False)
    judgement = judge_predicted(prediction(add=4), baseline, shown)
    assert (judgement.verdict, judgement.counts["launches"].now) == (Verdict.OK, 4)


def test_only_the_first_kernels_and_lines_are_told() -> None:
    baseline = baseline_of(prediction(), recorded="2026-01-01")
    said = explain_dry_run(prediction(**{f"k{i}": i for i in range(1, 9)}), baseline, ["launches"])
    assert said[0] == "launches of k8: 0 -> 8"
    assert said[5:] == ["and 3 more"]


def test_a_prediction_is_not_held_to_what_only_a_dry_run_knows() -> None:
    baseline = baseline_of(prediction(add=3), recorded="2026-01-01")
    from msgspec.structs import replace

    fake = replace(prediction(add=9), dry_run=None)
    assert judge_predicted(fake, baseline, POLICY).verdict is Verdict.OK
    assert explain_dry_run(fake, baseline, ["launches"]) == []


USE = Race("access", "aten::mul on stream 0", ["a.py:1", "t.py:9"], "aten::add on stream 1", ["a.py:2", "t.py:9"])
FREE = Race("freed", "aten::add on stream 1", ["a.py:2"], "", ["a.py:3"])


def test_a_race_fails_whatever_the_case_needs(snapshot: SnapshotAssertion) -> None:
    now = prediction(add=1, races=(USE, FREE))
    judgement = unless_broken(judge_predicted(now, None, POLICY), now)
    assert judgement.verdict is Verdict.FAILED
    assert judgement.reasons == snapshot
    assert now.dry_run is not None
    assert explain_broken("t.py::test_it", now.dry_run) == snapshot


def test_ranks_that_do_not_match_fail_before_races_are_told(snapshot: SnapshotAssertion) -> None:
    from msgspec.structs import replace

    now = prediction(add=1, races=(USE,))
    assert now.dry_run is not None
    both = Mismatch(
        number=2,
        rank=0,
        collective="barrier, all ranks",
        line="t.py:1",
        other_rank=7,
        other_collective="",
        other_line="",
    )
    now = replace(now, dry_run=replace(now.dry_run, mismatches=[both]))
    judgement = unless_broken(judge_predicted(now, None, POLICY), now)
    assert judgement.verdict is Verdict.FAILED
    assert judgement.reasons == snapshot
    assert now.dry_run is not None
    assert explain_broken("t.py::test_it", now.dry_run) == snapshot
