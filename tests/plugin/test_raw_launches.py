"""Triton kernels that are launched outside of an operator, on a machine without a GPU: skipped, or told what to do."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import run_pytest

pytestmark = pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="runs, where there is a GPU")
pytest.importorskip("triton")

KERNELS = """
import torch, triton
import triton.language as tl

@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 2.0, at < n)

def double(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y
"""

CASES = """
import torch

def test_loads_triton_itself(perf, device):
    def double(x):
        import kernels
        return kernels.double(x)
    perf(double, torch.ones(100, device=device))

def test_double(perf, device):
    from kernels import double
    out = perf(double, torch.ones(100, device=device))
    assert out.shape == (100,) and (perf.predicts or out.sum() == 200)

def test_bystander(perf, device):
    perf(torch.mm, torch.ones(64, 64, device=device), torch.ones(64, 64, device=device))

def test_plain():
    pass
"""


@pytest.fixture(autouse=True)
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    pytester.makepyfile(kernels=KERNELS, test_launch=CASES)
    pytester.makeini("[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\nperf_budget = 100ms\n")


def test_in_the_interpreter_a_case_is_skipped_and_runs_where_nothing_is_timed(
    pytester: pytest.Pytester, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    measured = run_pytest(pytester, python, "-m", "perf", passed=1, skipped=2, deselected=1)
    measured.stdout.fnmatch_lines(["bystander * new", "2 skipped: in Triton's interpreter, so its time means nothing*"])
    run_pytest(pytester, python).assert_outcomes(passed=4)


def test_without_a_gpu_or_the_interpreter_the_launch_is_named_with_what_to_do(
    pytester: pytest.Pytester, python: str
) -> None:
    launch = (
        "kernels.py:11: `double_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)` launches a Triton"
    )
    for arguments, why, remedy in (
        (["-m", "perf"], "kernel, but there is no GPU to run it", "set TRITON_INTERPRET=1 before Triton is"),
        ([], "kernel, but there is no GPU to run it", "set TRITON_INTERPRET=1 before Triton is"),
        (["-m", "perf", "--perf-predict"], "kernel, which needs the addresses of its tensors", "register_fake"),
    ):
        result = run_pytest(pytester, python, *arguments)
        selected = bool(arguments)
        result.assert_outcomes(passed=1 if selected else 2, failed=2, deselected=int(selected))
        text = result.stdout.str()
        assert f"test_double: {'cannot be predicted, ' * ('--perf-predict' in arguments)}{launch} {why}" in text
        assert remedy in text
        assert "active drivers" not in text
