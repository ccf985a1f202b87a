"""Which Triton kernels' machine code is the same on both sides of a comparison, and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perflab.base.data import changed
from perflab.measure.counts.counter import kernels_launched
from perflab.measured.report.failure import explain
from perflab.results.measurement import KernelCode, LaunchedKernel, Paired
from perflab.results.records import Change, Judgement, Verdict
from perflab.tables.failing import kernel_code_text
from perflab.turns.conclusions import compare_code
from perflab.turns.messages import Weighed
from tests.harness.make import record, result

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def scaled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 2.0, at < n)
"""
LAUNCHES = """
import importlib.util, json, sys, threading
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from perflab.measure.counts.counter import kernels_launched

def compiled(file, target, **options):
    spec = importlib.util.spec_from_file_location("kernels", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    types = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    return triton.compile(ASTSource(module.scaled, types, {(3,): 256}), target=target, options=options)

CompiledKernel._init_handles = lambda self: None  # it would load the code into a driver, and none is here
found = {}
for target in (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)):
    kernels = {file: compiled(file, target) for file in sys.argv[1:]}
    kernels["warps"] = compiled(sys.argv[1], target, num_warps=8)
    for name, kernel in kernels.items():
        launched = []
        with kernels_launched(launched):  # Triton's launcher asks a kernel for this at each launch
            kernel.launch_metadata((1, 1, 1), 0)
            other = threading.Thread(target=kernel.launch_metadata, args=((1, 1, 1), 0))
            other.start()
            other.join()
        kernel.launch_metadata((1, 1, 1), 0)
        (one,) = launched
        assert (one.name, one.launches) == ("scaled", 2)
        found.setdefault(str(target.arch), {})[name] = one.digest
print(json.dumps(found))
"""


def test_a_digest_is_that_of_the_code_wherever_its_source_stands(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    sources = {
        "as_it_was.py": KERNEL,
        "elsewhere/moved.py": f"# Moved.\n\n\n{KERNEL.replace('    at =', '    # A comment.' + chr(10) + '    at =')}",
        "renamed.py": KERNEL.replace("at < n", "where < n").replace("at =", "where =").replace("+ at", "+ where"),
        "changed.py": KERNEL.replace("2.0", "3.0"),
        "used_more.py": KERNEL.replace("* 2.0", "* 2.0 + 1.0"),
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHES, *sources],
        cwd=tmp_path,
        env=variables | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    by_arch = json.loads(done.stdout)
    assert set(by_arch) == {"80", "90", "gfx942"}
    for digests in by_arch.values():
        assert digests["as_it_was.py"] == digests["elsewhere/moved.py"] == digests["renamed.py"]
        assert len(set(digests.values())) == 4, "a constant, an addition and other warps are other code"
    assert len({digests["as_it_was.py"] for digests in by_arch.values()}) == 3


def test_a_triton_without_the_name_leaves_kernels_unknown_and_the_call_running(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = pytest.importorskip("triton.compiler")
    monkeypatch.delattr(compiler.CompiledKernel, "launch_metadata")
    launched: list[LaunchedKernel] = []
    with kernels_launched(launched):
        ran = True
    assert (ran, launched) == (True, [])


def launched(launches: int | None = None, **digests: str) -> Weighed:
    """A process's call: a launch of each kernel for each letter of its digests, and what was counted in all."""
    kernels = [LaunchedKernel(name=name, digest=one) for name, many in digests.items() for one in many]
    counts = {"kernel_launches": len(kernels) if launches is None else launches}
    return Weighed(memory=None, clock="cuda events", counts=counts, kernels=kernels)


def test_code_is_the_same_where_every_process_of_both_sides_launched_it() -> None:
    same = [launched(add="x", mul="y"), launched(add="x", mul="y")]
    assert compare_code(same, same) == KernelCode(same=["add", "mul"], is_all=True)
    assert compare_code(same, [launched(add="x", mul="z")]) == KernelCode(same=["add"], changed=["mul"], is_all=True)
    assert compare_code([launched(add="xy")], [launched(add="yx")]) == KernelCode(same=["add"], is_all=True)
    assert compare_code([launched(add="xy")], [launched(add="x")]) == KernelCode(changed=["add"], is_all=True)
    assert compare_code([launched(a="x", b="y")], [launched(b="y", c="z")]) == KernelCode(
        same=["b"], gone=["a"], new=["c"], is_all=True
    )


def test_code_of_an_autotuner_and_of_other_kernels_is_not_taken_for_the_same() -> None:
    tuned = [launched(add="x"), launched(add="y")]
    assert compare_code(tuned, tuned) == KernelCode(changed=["add"], is_all=True)
    assert compare_code([launched(add="x")] * 2, tuned) == KernelCode(changed=["add"], is_all=True)
    assert compare_code([launched(add="x")], [launched(2, add="x")]) == KernelCode(same=["add"])
    assert compare_code([changed(launched(add="x"), counts={})], [launched(add="x")]) == KernelCode(same=["add"])


def test_nothing_is_said_where_a_side_launched_no_triton_kernel_that_is_known() -> None:
    for base, head in (
        ([], []),
        ([launched()], [launched(add="x")]),
        ([launched(add="x")], [launched(add="x"), changed(launched(), counts={})]),
    ):
        assert compare_code(base, head) is None


ELSEWHERE = "in what kernels are given and how often, in copies, on the host or in the machine"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KernelCode(same=["add"], is_all=True), f"of add is the same: whatever changed is {ELSEWHERE}"),
        (KernelCode(same=["add"]), f"of add is the same: whatever changed is in other kernels, {ELSEWHERE}"),
        (
            KernelCode(same=["a"], changed=["b"], new=["c"], gone=["d"]),
            "of b differs, of c is new, of d is gone, of a is the same",
        ),
    ],
    ids=["all the same", "the same beside others", "each way"],
)
def test_a_failure_says_which_kernels_code_differs(code: KernelCode, said: str) -> None:
    assert kernel_code_text(code) == f"the machine code {said}"
    slower = Judgement(verdict=Verdict.REGRESSED, worse=["latency"], latency=Change(before=1e6, now=2e6, ratio=2.0))
    case = record(paired=Paired(against="main", screen=[2.0], kernels=code))
    text = " ".join(explain(result(outcome=case, judgement=slower), None).split())
    assert f"kernels: the machine code {said}" in text
    exact = Judgement(verdict=Verdict.REGRESSED, worse=["counts"], counts={})
    assert "kernels:" not in explain(result(outcome=case, judgement=exact), None)
