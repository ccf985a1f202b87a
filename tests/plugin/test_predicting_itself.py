"""Prediction that nobody asked for: of a case that does not fit a machine without a GPU, in the place of a skip."""

from __future__ import annotations

import json

import pytest

from tests.plugin.conftest import interrupted, run_pytest

pytestmark = pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="measured, where there is a GPU")

LARGE = """
import pytest, torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

BEFORE = sorted(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"))

def untouched():
    hooks = torch.nn.modules.module
    assert not _get_current_dispatch_mode_stack() and not _get_current_function_mode_stack()
    assert not hooks._global_forward_pre_hooks and not hooks._global_forward_hooks
    assert sorted(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")) == BEFORE
    assert torch.ones(2, 2).sum().item() == 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).softmax(0).dtype == torch.bfloat16

def product(rows, device):
    return torch.nn.Linear(64, 64, device=device), torch.ones(rows, 64, device=device)

def test_too_large(perf, device):
    perf.requires(memory_bytes=2**60)
    assert perf.predicts
    layer, x = product(2**22, device)
    out = perf(layer, x)
    torch.testing.assert_close(out, x)

def test_small(perf, device):
    untouched()
    perf.requires(memory_bytes=2**20, flops=1e6)
    layer, x = product(64, device)
    assert perf(layer, x).sum().item() != 0

def test_too_long(perf, device):
    perf.requires(seconds=3600)
    layer, x = product(64, device)
    perf(lambda: layer(x).sum())

def test_trains_first(perf):
    perf.requires(seconds=3600, setup_calls=100)
    raise AssertionError("must not get here")

def test_looks(perf):
    untouched()
    perf.requires(seconds=3600)
    if torch.ones(4).sum() > 3:
        raise AssertionError("must not get here")

def test_breaks(perf):
    perf.requires(seconds=3600)
    raise ValueError("of fake tensors")

def test_does_nothing(perf):
    perf.requires(seconds=3600)
    perf(lambda: None)

@pytest.fixture
def asks(perf):
    perf.requires(seconds=3600)
    return torch.ones(4)

def test_asked_in_a_fixture(perf, asks):
    perf(torch.mul, asks, 2)

@pytest.fixture
def asks_and_looks(asks):
    return asks.sum().item()

def test_looked_in_a_fixture(perf, asks_and_looks):
    pass

def test_last():
    untouched()
"""


SAID_FIRST = "perf: no GPU here; cases too large for this machine are predicted for h100, not run"
TOO_MUCH = ("test_large.py::test_too_large", "test_large.py::test_too_long")


@pytest.fixture
def python(python_with_compiler: str) -> str:
    return python_with_compiler


@pytest.fixture(autouse=True)
def large(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_large=LARGE)
    pytester.makeini("[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\nperf_budget = 300ms\n")


def test_what_does_not_fit_is_predicted_or_skipped_and_the_next_case_is_measured(
    pytester: pytest.Pytester, python: str
) -> None:
    options = ("--perf-update-new", "--perf-noisy=accept", "--perf-replicates=1", "-rs", "-v")
    result = run_pytest(pytester, python, *options, passed=5, skipped=5)
    text = result.stdout.str()
    for said in (r"small .* new, saved", r"trains_first +skipped: needs 7\.00 h of 300 ms"):
        assert pytest.LineMatcher(text.splitlines()).re_match_lines([said]) is None
    result.stdout.fnmatch_lines(
        [
            SAID_FIRST,
            "predicted for h100*",
            "too_large *new, saved",
            "too_long *new, saved",
            "asked_in_a_fixture *new, saved",
            "1 measured new · 3 predicted new · 5 skipped*",
        ]
    )
    flat = " ".join(text.split())
    for said in (
        "needs 7.00 h of 300 ms; cannot be predicted, test_large.py:44: `if torch.ones(4).sum() > 3:` needs values",
        "needs 7.00 h of 300 ms; cannot be predicted, ValueError: of fake tensors",
        "needs 7.00 h of 300 ms; cannot be predicted, test_large.py:65: `return asks.sum().item()` needs values",
        "needs 7.00 h of 300 ms; cannot be predicted, the callable calls no operator of PyTorch",
    ):
        assert said in flat, said
    folders = sorted(path.name for path in (pytester.path / "baselines").iterdir() if path.is_dir())
    assert [name.partition("-")[0] for name in folders] == ["cpu", "exact", "predicted"]

    run_pytest(pytester, python, *TOO_MUCH, "--perf-gpu=h100").stdout.fnmatch_lines(
        [
            SAID_FIRST,
            "*= perf =*",
            "predicted for h100*",
            "too_large *ok",
            "too_long *ok",
            "2 predicted ok · 0 measured",
        ]
    )
    (pytester.path / "test_large.py").write_text(LARGE.replace("layer(x).sum()", "layer(x).sum() + 1"))
    run_pytest(pytester, python, *TOO_MUCH, passed=1, failed=1).stdout.fnmatch_lines(
        [
            "too_long needs more on h100 than its baseline, as predicted: *",
            "if intended: pytest *too_long --perf-update",
        ]
    )
    (file,) = (pytester.path / "baselines").glob("predicted-h100/*.json")
    whole = file.read_text()
    file.write_text("{")
    damaged = run_pytest(pytester, python, *TOO_MUCH, "test_large.py::test_small", passed=1, failed=2)
    damaged.stdout.fnmatch_lines(["predicted baseline file *test_large.json is damaged at line 1*"])
    file.write_text(whole)
    run_pytest(pytester, python, TOO_MUCH[0], "--perf-predict").stdout.fnmatch_lines(["too_large *ok"])


def test_a_cpu_that_was_asked_for_by_name_is_measured_on_or_skipped(pytester: pytest.Pytester, python: str) -> None:
    result = run_pytest(pytester, python, "--perf-device=cpu", *TOO_MUCH, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "1 not run: * TiB of memory needed, * free (too_large)",
            "1 not run: up to 7.00 h needed, more than --perf-budget (300 ms) (too_long)",
            "  all of them: pytest --perf-device=cpu * --perf-budget=25200",
            "2 skipped",
        ]
    )
    result.stdout.no_fnmatch_line("perf: *predicted*")


@pytest.mark.parametrize("arguments", [["-k", "last"], ["--collect-only"], ["-q", *TOO_MUCH]])
def test_nothing_is_said_first_without_a_case_before_collecting_alone_or_where_it_is_to_be_quiet(
    pytester: pytest.Pytester, python: str, arguments: list[str]
) -> None:
    result = run_pytest(pytester, python, *arguments)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("perf: *")


def test_once_a_runs_time_is_over_nothing_is_predicted(pytester: pytest.Pytester, python: str) -> None:
    pytester.makeconftest("from perflab.settings.settings import TotalBudget\nTotalBudget.left_s = lambda self: -0.1\n")
    for arguments in ([], ["--perf-predict"]):
        result = run_pytest(pytester, python, "--perf-total-budget=1", TOO_MUCH[0], *arguments, skipped=1)
        result.stdout.fnmatch_lines(["1 not run: the run's 1.00 s were over*", "1 skipped"])


def test_ctrl_c_keeps_what_was_predicted(pytester: pytest.Pytester, python: str) -> None:
    pytester.makepyfile(
        test_large="""
import time
from pathlib import Path
import torch

def test_first(perf):
    perf(torch.mul, torch.ones(4), 2)

def test_hangs(perf):
    Path("hanging").touch()
    perf(lambda: time.sleep(600))
"""
    )
    options = ["--perf-predict", "--perf-update", "--perf-json=results.json"]
    assert "new, saved" in interrupted(pytester.path, python, *options)
    (row,) = json.loads((pytester.path / "results.json").read_text())["results"]
    assert row["case"] == "test_large.py::test_first"
    (journal,) = (pytester.path / ".perflab/runs").glob("*.jsonl")
    kept = [json.loads(line)["case"] for line in journal.read_text().splitlines()]  # the last result of a case counts
    assert set(kept) == {"test_large.py::test_first"}
