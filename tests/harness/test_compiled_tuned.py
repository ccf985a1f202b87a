"""Autotuned kernels and kernels with heuristics, registered as they are: an example for each configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.base.errors import KernelError
from perflab.compiled.compiler import KernelExample
from perflab.compiled.compiler.example import load_examples
from perflab.compiled.compiler.pool import CompilerPool
from perflab.compiled.judge import is_broken, judge_compiled
from perflab.compiled.run.kernels import can_be_saved, result_of
from perflab.compiled.store import KernelStore
from perflab.results.compiled import CompiledKernel, KernelBaseline, KernelResources
from perflab.results.records import Verdict
from tests.harness import tiny_kernels as tiny

HERE = "tests.harness.tiny_kernels"
FITS, LARGE, LIMITED = (
    "tuned-COLUMNS64-DEPTH32-w4-s2",
    "tuned-COLUMNS256-DEPTH128-w8-s4",
    "tuned-COLUMNS64-DEPTH32-w4-s2-r128",
)
Found = dict[str, CompiledKernel]


@pytest.fixture(scope="module")
def found(pool: CompilerPool) -> Found:
    names = {where: pool.names(f"{HERE}:{where}", [90])[90] for where in ("TUNED", "NONE_FITS", "REFUSING")}
    asked = {name: pool.submit(f"{HERE}:{where}", name, 90) for where, many in names.items() for name in many}
    return {name: answer.result() for name, answer in asked.items()}


def resources(kernel: CompiledKernel) -> KernelResources:
    assert kernel.resources is not None, kernel.problem
    return kernel.resources


def stored(kernel: CompiledKernel) -> KernelBaseline:
    return KernelBaseline(triton=kernel.triton, recorded="", resources=resources(kernel))


def test_an_autotuned_kernel_is_an_example_for_each_configuration_that_is_not_pruned() -> None:
    small, large, limited = load_examples(f"{HERE}:TUNED", 90)
    assert [small.name, large.name, limited.name] == [FITS, LARGE, LIMITED]
    assert small.kernel is tiny.product
    assert {small.tuned, large.tuned} == {"tuned"}
    assert [one.arguments["ROWS"] for one in (small, large)] == [64, 128], "a heuristic reads the configuration"
    assert (large.arguments["DEPTH"], large.num_warps, large.num_stages) == (128, 8, 4)
    assert (small.options, limited.options) == ({}, {"maxnreg": 128})


def test_heuristics_alone_leave_the_name() -> None:
    given = triton.heuristics({"BLOCK": lambda given: given["length"] // 4, "num_warps": lambda given: 2})(tiny.add)
    arguments = {"x_ptr": tiny.X, "y_ptr": tiny.X, "out_ptr": tiny.X, "length": 4096}
    (one,) = KernelExample("add", given, arguments, num_stages=1).configured()
    assert (one.name, one.arguments["BLOCK"], one.num_warps, one.num_stages, one.tuned) == ("add", 1024, 2, 1, None)


def test_what_does_not_fit_is_what_the_tuner_passes_over(
    found: Found, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    large, small = found[LARGE], found[FITS]
    assert (small.passed_over, large.passed_over) == (False, True)
    assert judge_compiled(small, None).verdict is Verdict.NEW
    judgement = judge_compiled(large, None)
    assert judgement.verdict is Verdict.SKIPPED
    assert judgement.reasons == snapshot
    assert not can_be_saved(result_of("x", large, KernelStore(tmp_path)))


def test_one_that_no_longer_fits_is_worse_until_that_is_accepted(found: Found, tmp_path: Path) -> None:
    large = found[LARGE]
    before = changed(resources(large), dynamic_shared_bytes=1000, blocks_per_sm=1, warps_per_sm=8)
    judgement = judge_compiled(large, KernelBaseline(triton=large.triton, recorded="", resources=before))
    assert (judgement.verdict, judgement.worse[0]) == (Verdict.REGRESSED, "shared memory")
    assert not is_broken(large)
    assert judge_compiled(large, stored(large)).verdict is Verdict.SKIPPED


def test_a_compile_time_assertion_refuses_a_configuration_as_it_does_for_the_tuner(found: Found) -> None:
    narrow, wide = found["refusing-BLOCK16-w4-s3"], found["refusing-BLOCK32-w4-s3"]
    assert (narrow.passed_over, wide.passed_over, is_broken(wide)) == (False, True, False)
    (reason,) = judge_compiled(wide, None).reasons
    assert "too wide" in reason


def test_where_no_configuration_fits_the_kernel_fails(found: Found, snapshot: SnapshotAssertion) -> None:
    (only,) = (kernel for name, kernel in found.items() if name.startswith("none-fits"))
    assert not only.passed_over
    assert is_broken(only)
    judgement = judge_compiled(only, None)
    assert judgement.verdict is Verdict.FAILED
    assert judgement.reasons[-1] == snapshot


def test_what_a_tuner_gives_is_not_given_by_the_example(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(KernelError) as caught:
        KernelExample("tuned", tiny.tuned_product, {**tiny.TUNED[0].arguments, "DEPTH": 32})
    assert str(caught.value) == snapshot


def test_what_neither_gives_is_missing() -> None:
    with pytest.raises(KernelError, match="kernel example 'x' does not give 'out_ptr', 'depth', which product takes"):
        KernelExample("x", tiny.tuned_product, {"a_ptr": tiny.X, "b_ptr": tiny.X})


def test_a_heuristic_that_fails_and_a_rule_that_leaves_nothing_are_told() -> None:
    failing = triton.heuristics({"BLOCK": lambda given: 1 // 0})(tiny.add)
    arguments = {"x_ptr": tiny.X, "y_ptr": tiny.X, "out_ptr": tiny.X, "length": 4096}
    with pytest.raises(KernelError, match="the heuristic of add for 'BLOCK' failed: ZeroDivisionError"):
        KernelExample("add", failing, arguments).configured()
    with pytest.raises(KernelError, match="early_config_prune of product leaves no configuration"):
        KernelExample("tuned", tiny.tuned_product, {**tiny.TUNED[0].arguments, "depth": 16}).configured()
