"""Each fixture alone, the way a test of numerics or a script-like test would use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


def test_device_is_a_torch_device_that_tensors_can_live_on(device: torch.device) -> None:
    assert isinstance(device, torch.device)
    assert torch.ones(2, device=device).device.type == device.type


def test_sync_returns_once_the_work_is_done(device: torch.device, sync: Callable[[], None]) -> None:
    x = torch.rand(256, 256, device=device) @ torch.rand(256, 256, device=device)
    sync()
    if device.type == "cuda":
        assert torch.cuda.current_stream(device).query()
    assert x.shape == (256, 256)


def test_warmup_calls_until_readings_agree_and_tells_how_often(warmup: Callable[..., Any]) -> None:
    calls: list[int] = []
    report = warmup(lambda x: calls.append(x), 3)
    assert report.calls == len(calls)
    assert report.calls >= 2
    assert report.repetitions >= 1
    assert len(report.readings_ns) >= 2


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [("bf16", torch.bfloat16), (torch.bfloat16, torch.bfloat16), ("fp32", torch.float32), (None, torch.float32)],
)
def test_autocast_runs_products_in_the_precision_that_was_named(
    device: torch.device, autocast: Callable[..., Any], precision: object, wanted: torch.dtype
) -> None:
    x = torch.rand(8, 8, device=device)
    with autocast(precision):
        assert (x @ x).dtype == wanted


def test_autocast_refuses_what_is_no_precision(autocast: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="'bf61' is not a precision"):
        autocast("bf61")


def test_memory_snapshot_knows_the_peak_and_leaves_the_history(
    device: torch.device, memory_snapshot: Callable[..., Any]
) -> None:
    with memory_snapshot("two blocks") as snapshot:
        first = torch.empty(1 << 20, dtype=torch.uint8, device=device)
        del first
        second = torch.empty(3 << 20, dtype=torch.uint8, device=device)
    assert snapshot.peak_bytes == 3 << 20
    path: Path = snapshot.path
    assert path.stat().st_size > 0
    if device.type == "cpu":
        sizes = [size for _, size, *_ in json.loads(path.read_text())["events"]]
        assert sizes == [1 << 20, -(1 << 20), 3 << 20]
    path.unlink()
    assert second.numel() == 3 << 20


def test_nvtx_range_shows_in_the_profiler_under_its_name(device: torch.device, nvtx_range: Callable[..., Any]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler, nvtx_range("my range"):
        torch.ones(2, device=device)
    assert "my range" in {event.name for event in profiler.events()}


def test_the_fixtures_are_listed_with_what_they_do(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_subprocess("--fixtures").stdout.str()
    for fixture in ("perf", "device", "sync", "warmup", "autocast", "memory_snapshot", "nvtx_range"):
        assert f"\n{fixture}" in text
    ours = text[text.index("fixtures defined from perflab") :].split("fixtures defined")[1]
    assert "no docstring available" not in ours


@pytest.mark.gpu_numbers
def test_perf_returns_what_the_callable_returned(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_call(perf, device):
            x = torch.rand(64, 64, device=device)
            torch.testing.assert_close(perf(torch.add, x, x, alpha=2), 3 * x)
            assert perf.device == device

        def test_step(perf):
            w = torch.ones(64, requires_grad=True)
            seen = []
            def clear():
                seen.append(w.grad.sum().item())
                w.grad = None
            loss = perf.step(forward=lambda: (w * w).sum(), backward=torch.Tensor.backward, optimizer=clear)
            assert loss.item() == 64
            assert set(seen) == {128.0}

        def test_work_must_be_positive(perf):
            perf.work(tokens=0)
        """
    )
    result = pytester.runpytest_inprocess("-m", "perf", "--perf-budget=300ms")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*perf.work(tokens=0)*", "*give a positive number of units in one call*"])


def test_settings_of_a_run_and_of_each_tier_are_typed_attributes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import copy
        from perflab import settings_of
        from perflab.compiled.settings import Compiling
        from perflab.predicted.settings import Predicting

        def test_settings(pytestconfig):
            settings = settings_of(pytestconfig)
            predicting, compiling = settings.part(Predicting), settings.part(Compiling)
            assert (settings.predict, settings.against, settings.against_threshold) == (False, None, 0.02)
            assert (predicting.gpu.name, predicting.snapshots) == ("a100-40gb", False)
            assert (compiling.kernels, compiling.archs) == (("a.b:C",), (90, 100))
            assert not hasattr(settings, "gpu")
            assert copy.copy(settings) == settings
    """)
    result = pytester.runpytest("--perf-gpu=a100-40gb", "--perf-kernels=a.b:C", "--perf-arch=90,100")
    result.assert_outcomes(passed=1)
