"""An A/B comparison on CUDA says which Triton kernels' machine code differs between the two versions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from nocuda import environment
from perflab.results.documents import read_document
from perflab.results.measurement import KernelCode

from .active import needs_nocuda

pytestmark = needs_nocuda
KERNELS = """
import torch, triton
import triton.language as tl

@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 2.0, at < n)

@triton.jit
def half_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 0.5, at < n)

def run(kernel, x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y
"""
CASES = """
import torch
from kernels import double_kernel, half_kernel, run

def test_double(perf):
    perf(run, double_kernel, torch.ones(100, device="cuda"))

def test_half_and_more(perf):
    perf(lambda x: run(half_kernel, x).add_(1), torch.ones(100, device="cuda"))

def test_without(perf):
    perf(torch.add, torch.ones(100, device="cuda"), 1)
"""


def test_a_changed_kernel_is_named_and_an_unchanged_one_is_the_same(tmp_path: Path) -> None:
    base, head = tmp_path / "base", tmp_path / "head"
    head.mkdir()
    (head / "kernels.py").write_text(KERNELS)
    (head / "test_cases.py").write_text(CASES)
    (head / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    shutil.copytree(head, base)
    (head / "kernels.py").write_text(f"# Lines have moved.\n{KERNELS.replace('* 2.0', '* 3.0')}")
    options = ["--perf-budget=0.1", "--perf-check=off", "--perf-total-budget=30", "--perf-json=out.json"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "perf", f"--perf-against={base}", *options],
        cwd=head,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one.case.partition("::")[2]: one.record.paired for one in read_document(head / "out.json").results}
    assert {case: paired.kernels for case, paired in found.items()} == {
        "test_double": KernelCode(changed=["double_kernel"], is_all=True),
        "test_half_and_more": KernelCode(same=["half_kernel"]),
        "test_without": None,
    }
