"""Stories of the compiled tier: a project's own kernel, gated on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.base.errors import KernelError
from perflab.compiled.run.command import compiled_by
from tests.plugin.conftest import Folder

KERNELS = """
import torch
import triton
import triton.language as tl

from perflab.compiled.compiler import KernelExample

@triton.jit
def product(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    here = at[:, None] * SIZE + at[None, :]
    tl.store(out_ptr + here, tl.dot(tl.load(a_ptr + here), tl.load(b_ptr + here)))

x = torch.empty(64, 64, dtype=torch.bfloat16, device="meta")
EXAMPLES = [
    KernelExample(
        "product",
        product,
        {"a_ptr": x, "b_ptr": x, "out_ptr": x.float(), "SIZE": 64},
        num_warps=4,  # tuned
    )
]
"""


class Kernels(Folder):
    """A project with one registered kernel."""

    def __init__(self, pytester: pytest.Pytester, python: str) -> None:
        super().__init__(pytester, python, "perf_kernels = my_kernels:EXAMPLES\nperf_arch = 80,90\n")
        pytester.makepyfile(my_kernels=KERNELS, test_mine="def test_kernel(compiled_kernel):\n    pass\n")
        # As a project has it that checks its kernels in the interpreter where there is no GPU.
        pytester.makeconftest("import os\nos.environ['TRITON_INTERPRET'] = '1'\n")


@pytest.fixture
def python(python_of_kernels: str) -> str:
    return python_of_kernels


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, python: str, kernels_cache: Path) -> Kernels:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # the project's conftest sets it: each process by itself
    monkeypatch.setenv("TRITON_CACHE_DIR", str(kernels_cache))
    return Kernels(pytester, python)


def test_a_kernel_is_saved_then_spills_and_fails_and_is_accepted(project: Kernels) -> None:
    project.pytest("-m", "perf", "--perf-update", passed=2).stdout.fnmatch_lines(
        [
            "compiled: triton * · ptxas * (sm_80*90)*",  # one version for both, up to triton 3.8
            "product",
            " sm_80 * mma *  new, saved",
            " sm_90 * wgmma *  new, saved",
            "saved 2 compiled kernels to baselines/triton-*/my_kernels.EXAMPLES.json",
        ]
    )
    project.edit("num_warps=4,  # tuned", "num_warps=2, options={'maxnreg': 64},", "my_kernels.py")
    project.pytest("--perf-json=out.json", failed=2).stdout.fnmatch_lines(
        [
            "product[[]sm_80] is worse than its baseline: spills more*",
            "*before * now * change  limit",
            "spill store bytes * 0 * exact  failed",
            "registers *",
            "num warps * 4 * 2 * -2   none",
            "why: spills * B of registers per thread (stores and loads) instead of*",
            "if intended: pytest 'test_mine.py::test_kernel[[]product-sm80]' --perf-update",
            "product[[]sm_90] is worse than its baseline: *lost tensor-core*",
            "why: lost wgmma: its products run as mma now",
            " sm_80 *REGRESSED",
            "2 regressed   (accept: --perf-update)",
        ]
    )
    results = project.results("out.json")
    assert [one["judgement"]["verdict"] for one in results] == ["regressed", "regressed"]
    assert results[0]["outcome"]["now"]["resources"]["spill_store_bytes"] > 0

    accepted = project.perflab("kernels", "--update", "--reason=one warp is enough")
    assert accepted.ret == 0
    accepted.stdout.fnmatch_lines([" sm_80 *accepted", "saved 2 compiled kernels to baselines/triton-*"])
    again = project.perflab("kernels", "--arch=80")
    assert again.ret == 0
    again.stdout.fnmatch_lines([" sm_80 *ok", "1 ok"])


def test_more_work_in_the_code_fails_and_loops_are_told(project: Kernels) -> None:
    project.pytester.makepyfile(my_kernels=KERNELS.replace("64", "128").replace("num_warps=4", "num_warps=8"))
    assert project.perflab("kernels", "--update", "--arch=90").ret == 0
    told = project.perflab("kernels", "--arch=90", "--loops")
    told.stdout.fnmatch_lines(["product[[]sm_90]", "  no loop: * instructions, bound by *: at most * % of the peak, *"])
    told.stdout.fnmatch_lines(["    issues: tensor products:64x128x16 *, *"])
    project.edit("tl.store(out_ptr + here, tl.dot(", "tl.store(out_ptr + here, tl.exp2(1.0) + tl.dot(", "my_kernels.py")
    project.edit(
        "tl.load(b_ptr + here)))", "tl.sin(tl.load(b_ptr + here).to(tl.float32)).to(tl.bfloat16)))", "my_kernels.py"
    )
    worse = project.perflab("kernels", "--arch=90")
    assert worse.ret == 1
    worse.stdout.fnmatch_lines(
        [
            "product[[]sm_90] is worse than its baseline: *more work in a loop*",
            "code float arithmetic * 0 * exact  failed",
            "code local memory * 0 * exact  failed",
            "why: code issues *more*",
        ]
    )
    # The sine of large arguments indexes an array in local memory: nothing is spilled.
    worse.stdout.no_fnmatch_line("*spills more*")


def test_what_another_environment_makes_of_the_same_kernels_is_compared(project: Kernels) -> None:
    project.edit("num_warps=4,  # tuned", 'num_warps=int(__import__("os").environ.get("WARPS", 4)),', "my_kernels.py")
    other = project.pytester.path / "other-python"
    other.write_text(f'#!/bin/sh\nWARPS=8 exec {project.python} "$@"\n')
    other.chmod(0o755)
    worse = project.perflab("kernels", "--arch=90", f"--against={other}")
    assert worse.ret == 1
    worse.stdout.fnmatch_lines(["num warps * 8 * 4 *", f"compared with triton * of {other}", "1 regressed *"])
    same = project.perflab("kernels", "--arch=90", f"--against={project.python}")
    assert same.ret == 0
    same.stdout.fnmatch_lines([" sm_90 *  ok", "1 ok"])
    nothing = project.perflab("kernels", "--arch=90", "--against=/bin/false")
    assert nothing.ret == 2
    nothing.stderr.fnmatch_lines(["perflab kernels: /bin/false compiled nothing: *", "  -> *"])
    other.write_text("#!/bin/sh\necho loading; exec sleep 600\n")
    with pytest.raises(KernelError, match=r"was ended after 0\.1 s: .*\n  -> see where it hangs: .*perf_timeout"):
        compiled_by(str(other), ["my_kernels"], [90], limit_s=0.1)
    refused = project.perflab("kernels", "--update", f"--against={other}")
    refused.stderr.fnmatch_lines(["perflab kernels: --against with --update", "  -> *"])


def test_machine_code_of_a_file_is_read_and_bad_input_is_told(
    project: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert project.perflab("kernels", "--arch=90").ret == 0
    (cubin,) = tmp_path.glob("*/product.cubin")
    told = project.perflab("machine-code", str(cubin), "--match=^product$", "--warps=8", "--shared=65536")
    assert told.ret == 0
    told.stdout.fnmatch_lines(
        [
            "product [[]sm_90]",
            "  * registers, 0 B of stack, 3 blocks on a multiprocessor",
            "  no loop: * bound by *",
            "    issues: tensor products:64x64x16 *",
        ]
    )
    (tmp_path / "damaged.cubin").write_bytes(cubin.read_bytes()[:500])
    (tmp_path / "none.so").write_text("no code")
    for arguments, problem, remedy in (
        ([str(cubin), "--match=other"], "product.cubin has no kernel whose name matches 'other'", "names are mangled*"),
        ([str(cubin), "--match=("], "--match=(: missing *", "give a regular expression*"),
        ([str(cubin), "--arch=80,90"], "--arch: 80,90 is not one architecture that has cubins", "name one of *"),
        ([str(cubin), "--warps=0"], "--warps and --shared are sizes of a block", "give at least one warp*"),
        ([str(tmp_path / "damaged.cubin")], "damaged.cubin cannot be read: *", "name a cubin*"),
        ([str(tmp_path / "none.so")], "none.so cannot be read: *", "name a cubin*"),
        ([str(tmp_path / "gone.so")], "there is no file *gone.so", "name a cubin*"),
    ):
        refused = project.perflab("machine-code", *arguments)
        assert refused.ret == 2
        refused.stderr.fnmatch_lines([f"perflab machine-code: {problem}", f"  -> {remedy}"])


def test_kernels_that_cannot_run_fail_with_what_the_compiler_said_and_are_not_saved(project: Kernels) -> None:
    project.edit("tl.dot(tl.load(a_ptr + here)", "tl.dot(tl.lode(a_ptr + here)", "my_kernels.py")
    result = project.perflab("kernels", "--update", "--arch=90")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "product[[]sm_90] does not compile",
            "*no attribute 'lode'*",
            "in: tl.store(out_ptr + here, tl.dot(tl.lode(a_ptr + here), tl.load(b_ptr + here)))",
            " sm_90 * FAILED",
            "1 failed",
        ]
    )
    assert not list((project.pytester.path / "baselines").glob("*/*.json"))
    in_tests = project.pytest("--perf-update", "-k", "sm90", failed=1, deselected=1)
    in_tests.stdout.fnmatch_lines(["product[[]sm_90] does not compile", "1 failed"])


def test_what_cannot_be_used_is_told_before_anything_is_compiled(project: Kernels) -> None:
    unknown = project.perflab("kernels", "--arch=95")
    assert unknown.ret == 2
    unknown.stderr.fnmatch_lines(["perflab kernels: --arch: '95' is not an architecture * known are 80, *", "  -> *"])
    elsewhere = project.perflab("kernels", "my_kernels:EXAMPLE")
    assert elsewhere.ret == 2
    elsewhere.stderr.fnmatch_lines(["perflab kernels: my_kernels has no EXAMPLE", "  -> did you mean EXAMPLES? *"])
    project.pytester.makeini("[pytest]\naddopts = -p perflab.plugin\n")
    project.pytest("-p", "no:cacheprovider", errors=1).stdout.fnmatch_lines(
        ["a test uses compiled_kernel, but no kernels are registered", "  -> name what holds *"]
    )
    assert project.perflab("kernels").ret == 2


def test_a_damaged_baseline_is_named_and_left_alone(project: Kernels) -> None:
    folder = project.pytester.mkdir("baselines") / "triton-0.0.1"
    folder.mkdir()
    damaged = folder / "my_kernels.EXAMPLES.json"
    damaged.write_text("{")
    result = project.pytest("--perf-update")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*kernel baseline file *EXAMPLES.json is damaged at line 1, column 2*"])
    assert project.perflab("kernels", "--update").ret == 2
    assert damaged.read_text() == "{"


def test_workers_of_xdist_share_the_kernels(project: Kernels) -> None:
    pytest.importorskip("xdist")
    project.pytester.makeconftest("")  # workers inherit what it sets, and Triton heeds that when it is imported
    result = project.pytest("-p", "xdist", "-n2", "--perf-update-new", passed=2)
    result.stdout.fnmatch_lines([" sm_80 *new, saved", " sm_90 *new, saved", "2 new"])


def test_deselected_kernels_are_not_compiled_and_a_measurement_beside_them_is_none_of_theirs(project: Kernels) -> None:
    project.pytester.makepyfile(test_both="def test_both(perf, compiled_kernel):\n    pass\n")
    refused = project.pytest("test_both.py")
    assert refused.ret == 4
    refused.stderr.fnmatch_lines(
        ["*test_both.py::test_both* asks for both perf and compiled_kernel", "  -> split it into two tests*"]
    )
    project.pytest("-m", "not perf", "test_mine.py", deselected=2).stdout.no_fnmatch_line("*triton*")


def test_a_test_may_hold_a_kernel_to_more_than_its_baseline(project: Kernels) -> None:
    project.pytester.makepyfile(
        test_mine="def test_kernel(compiled_kernel):\n    assert compiled_kernel.registers < 1\n"
    )
    result = project.pytest("-k", "sm80", "--perf-update", failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*assert * < 1*", " sm_80 * FAILED", "    the test failed", "1 failed"])
    assert not list((project.pytester.path / "baselines").glob("*/*.json"))


def test_once_a_runs_time_is_over_no_kernel_is_compiled(project: Kernels) -> None:
    project.pytester.makeconftest(
        "import os\nos.environ['TRITON_INTERPRET'] = '1'\n"
        "import perflab.compiled.run.cases as compiled\n"
        "compiled.TotalBudget.left_s = lambda self: 0.0\n"
        "compiled.CompilerPool = None  # not to be started\n"
    )
    project.pytest("-m", "perf", "--perf-total-budget=1min", "-rs", skipped=2).stdout.fnmatch_lines(
        [
            "2 not run: the run's 60.0 s were over (*",
            "  all of them: pytest *-m perf --perf-total-budget=",
            "2 skipped",
            "*not compiled: the run's 60.0 s are over (--perf-total-budget)*",
        ]
    )
