"""Tiles are timed once for each kind of problem. The clock is a stand-in, and the kernels run in the interpreter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from perflab.lab import launch
from perflab.lab.attention import attention
from perflab.lab.attention import triton_tuning as tuning
from perflab.lab.attention.triton_launches import problem_class
from perflab.lab.attention.triton_tiles import CDNA4_SHARED_BYTES, Tiles, candidate_tiles
from perflab.lab.launch import SHARED_BYTES, Launch, is_interpreted, run_prepared, shared_memory_bytes

pytestmark = [
    pytest.mark.correctness,
    pytest.mark.skipif(not is_interpreted(), reason="on a GPU Triton's own clock tunes, and keeps what it finds"),
]
CPU = torch.device("cpu")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """As on a GPU, with a clock that finds each candidate faster than the one before it."""
    readings: list[float] = []

    def do_bench(run: Callable[[], Any], **how: Any) -> list[float]:
        run()
        readings.append(-float(len(readings)))
        return [readings[-1]] * 3

    monkeypatch.setattr(tuning, "_do_bench", do_bench)
    monkeypatch.setattr(tuning, "is_interpreted", lambda: False)
    monkeypatch.setattr(tuning, "_tuned", {})
    monkeypatch.setattr(tuning, "_ran", {})
    return readings


def attend(length: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 1, length, 16, dtype=torch.float16)
    wanted = attention(q.float(), q.float(), q.float(), impl="reference")
    torch.testing.assert_close(attention(q, q, q, impl="triton").float(), wanted, atol=2e-3, rtol=2e-3)


def test_the_fastest_tiles_are_taken_and_remembered(timed: list[float]) -> None:
    candidates = candidate_tiles("forward", 16, torch.float16, shared_memory_bytes(CPU))
    assert len(candidates) > 1
    attend(40)
    assert len(timed) == len(candidates)
    assert list(tuning.tiles_in_use().values()) == [candidates[-1]]
    attend(41)  # the same powers of two
    assert len(timed) == len(candidates)
    attend(70)
    assert len(timed) == 2 * len(candidates)


class Compiled:
    """A kernel that notes how often it was compiled, and the arguments of each launch."""

    arg_names = ("x_ptr", "size", "y_ptr")

    def __init__(self) -> None:
        self.compiled, self.launches = 0, list[tuple[Any, ...]]()

    def warmup(self, **arguments: Any) -> dict[tuple[int, ...], Callable[..., None]]:
        self.compiled += 1
        return {arguments["grid"]: lambda *given: self.launches.append(given)}


def test_a_prepared_launch_is_of_one_layout_and_takes_that_call_s_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "is_interpreted", lambda: False)
    monkeypatch.setattr(launch, "_prepared", {})
    kernel, y = Compiled(), torch.empty(8)

    def make(x: torch.Tensor, y: torch.Tensor, size: int) -> Launch:
        return Launch(kernel, (2, 1, 1), {"y_ptr": y, "x_ptr": x, "size": size}, x.device)

    def run(x: torch.Tensor, size: int = 8) -> None:
        run_prepared(make, x, y, size)
        assert kernel.launches[-1][0] is x
        assert kernel.launches[-1][1:] == (size, y)

    for same in (torch.empty(8), torch.empty(8), torch.empty(12)[4:]):
        run(same)
        assert kernel.compiled == 1
    others = [torch.empty(9)[1:], torch.empty(16)[::2], torch.empty(8).half(), torch.empty(2, 4)]
    for compiled, other in enumerate(others, 2):
        run(other)
        assert kernel.compiled == compiled
    run(torch.empty(8), size=7)
    assert kernel.compiled == 6


def test_a_launch_that_was_prepared_with_one_tensor_twice_takes_two_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "is_interpreted", lambda: False)
    monkeypatch.setattr(launch, "_prepared", {})
    kernel = Compiled()
    one, x, y = torch.empty(3, 8)

    def make(x: torch.Tensor, y: torch.Tensor) -> Launch:
        return Launch(kernel, (1, 1, 1), {"x_ptr": x, "size": 8, "y_ptr": y}, x.device)

    for given in ((one, one), (x, y)):
        run_prepared(make, *given)
        assert kernel.launches[-1][0] is given[0]
        assert kernel.launches[-1][2] is given[1]
    assert kernel.compiled == 1


def test_a_launch_is_prepared_on_its_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[torch.device] = []

    class On:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            entered.append(self.device)

        def __exit__(self, *error: object) -> None:
            entered.pop()

    class OnIts(Compiled):
        def warmup(self, **arguments: Any) -> dict[tuple[int, ...], Callable[..., None]]:
            assert entered == [CPU]
            return super().warmup(**arguments)

    monkeypatch.setattr(launch, "is_interpreted", lambda: False)
    monkeypatch.setattr(launch, "current", On)
    x = torch.empty(8)
    Launch(OnIts(), (1, 1, 1), {"x_ptr": x, "size": 8, "y_ptr": x}, CPU).prepared([x])


def test_a_call_whose_checks_have_passed_is_no_other_call() -> None:
    q = torch.randn(1, 1, 8, 16)
    attention(q, q, q, impl="tiled", sinks=1, window_size=(4, 0))
    with pytest.raises(ValueError, match="sinks must be how many"):
        attention(q, q, q, impl="tiled", sinks=True, window_size=(4, 0))
    attention(q, q, q, impl="tiled", window_size=[4, 0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no setting 'is_casual'"):
        attention(q, q, q, impl="tiled", is_casual=[True])  # type: ignore[call-arg]
    cap = torch.tensor(30.0)
    attention(q, q, q, impl="tiled", softcap=cap)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="softcap must be"):
        attention(q, q, q, impl="tiled", softcap=cap.neg_())  # type: ignore[arg-type]
    attention(q, q, q, impl="flex")
    with pytest.raises(NotImplementedError, match="no backward"):
        attention(q.requires_grad_(), q, q, impl="flex")


def test_tuning_can_be_switched_off(timed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFLAB_AUTOTUNE", "0")
    attend(40)
    assert timed == []
    assert list(tuning.tiles_in_use().values()) == [
        candidate_tiles("forward", 16, torch.float16, shared_memory_bytes(CPU))[0]
    ]


def test_what_was_tuned_is_used_where_nothing_may_be(timed: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """While a CUDA graph is captured, say: it must run what its warm-up ran."""
    attend(40)
    tuned = tuning.tiles_in_use()
    monkeypatch.setattr(tuning, "_may_tune", lambda: False)
    attend(40)
    assert tuning.tiles_in_use() == tuned
    assert list(tuned.values()) == [candidate_tiles("forward", 16, torch.float16, shared_memory_bytes(CPU))[-1]]


def test_problems_of_like_size_are_tuned_together() -> None:
    def kind(batch: int, length: int) -> int:
        q = torch.empty(batch, 2, length, 8, device="meta")
        return problem_class(q, q)

    assert kind(1, 1000) == kind(1, 1024)
    assert len({kind(1, 1024), kind(1, 1025), kind(2, 1024), kind(2, 512)}) == 4


@pytest.mark.parametrize(("limit", "stages"), [(CDNA4_SHARED_BYTES, 1), (CDNA4_SHARED_BYTES + 1, 2)])
def test_where_triton_pads_tiles_on_their_way_one_stage_less_is_taken(limit: int, stages: int) -> None:
    """At two stages the 64 x 64 tile of 256 columns is 163,840 B, and gfx950's compiler pads what is on its way."""
    (widest,) = [one for one in candidate_tiles("forward", 256, torch.bfloat16, limit) if one.block_k == 64]
    assert widest.num_stages == stages


@pytest.mark.parametrize(
    ("kernel", "limit", "head_dim", "feature", "left_out"),
    [
        ("forward", SHARED_BYTES[80], 64, "has_sinks", (Tiles(128, 64, 8, 3),)),
        ("forward", SHARED_BYTES[90], 64, "has_sinks", (Tiles(128, 128, 8, 2),)),
        ("dk_dv", SHARED_BYTES[80], 64, "is_capped", (Tiles(32, 128, 4, 2),)),
        ("dk_dv", SHARED_BYTES[90], 64, "is_capped", (Tiles(64, 128, 8, 2), Tiles(64, 64, 4, 2))),
        ("dk_dv", SHARED_BYTES[90], 256, "is_capped", (Tiles(32, 64, 8, 2),)),
        ("dk_dv", SHARED_BYTES[90], 256, "has_sinks", (Tiles(32, 64, 8, 2),)),
    ],
)
def test_tiles_that_spill_with_a_feature_are_left_out_there_alone(
    kernel: str, limit: int, head_dim: int, feature: str, left_out: tuple[Tiles, ...]
) -> None:
    def tiles_on(limit: int, **features: bool) -> tuple[Tiles, ...]:
        return candidate_tiles(kernel, head_dim, torch.bfloat16, limit, **features)

    every = tiles_on(limit)
    assert tuple(one for one in every if one not in left_out) == tiles_on(limit, **{feature: True})
    assert set(left_out) <= set(every)
    assert tiles_on(CDNA4_SHARED_BYTES) == tiles_on(CDNA4_SHARED_BYTES, **{feature: True})
