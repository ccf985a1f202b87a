"""The judge of compiled kernels, case by case; and what its reports say."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.compiled.judge import is_broken, judge_compiled
from perflab.compiled.report import explain_kernel, kernel_table
from perflab.report.summary import markdown, summary
from perflab.results.compiled import CompiledCase, CompiledKernel, KernelBaseline, LoopCounts
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Result
from tests.harness.make import baseline, document, kernel, resources, result


def judged(**changes: Any) -> Judgement:
    return judge_compiled(kernel(resources(**changes)), baseline())


def loop(cycles: float = 700.0, flops: int = 1, **issues: int) -> LoopCounts:
    """A loop of 8 products, 32 exponentials, 16 conversions and 40 moves, bound by issuing; ``flops`` times 2 M."""
    counts = {"tensor_products:64x64x16": 8, "exponentials": 32, "conversions": 16, "moves": 40} | issues
    return LoopCounts(
        issues={kind: count for kind, count in counts.items() if count},
        cycles={"tensor cores": 512.0, "issue": cycles},
        flops=flops * 2_097_152,
        share_of_peak=0.731,
    )


LOOPS: dict[str, tuple[list[LoopCounts], bool]] = {
    "the same": ([loop()], False),
    "more conversions": ([loop(conversions=40)], True),
    "the same instructions in another order": ([loop(712.0)], False),
    "more of a kind, and longer": ([loop(712.0, conversions=20, moves=30)], True),
    "placeholders, which are no work": ([loop(nothing=8, moves=38)], False),
    "more of a kind, and fewer in all": ([loop(690.0, conversions=20, moves=30)], False),
    "more of a kind, and as many in all": ([loop(conversions=20, moves=36)], True),
    "fewer moves": ([loop(moves=39)], False),
    # Another unrolling is compared by what as many products take.
    "another unrolling": ([loop(1400.0, **{"tensor_products:64x64x16": 16, "moves": 80}, flops=2)], False),
    "another unrolling, and longer": ([loop(1420.0, **{"tensor_products:64x64x16": 16}, flops=2)], True),
    "another number of loops": ([loop(moves=90), loop()], False),
}


@pytest.mark.parametrize(("now", "is_worse"), LOOPS.values(), ids=LOOPS)
def test_a_loop_that_issues_more_is_worse(now: list[LoopCounts], is_worse: bool, snapshot: SnapshotAssertion) -> None:
    judgement = judge_compiled(kernel(resources(loops=now)), baseline(resources(loops=[loop()])))
    assert judgement.worse == ["loops"] * is_worse
    assert judgement.reasons == (snapshot if is_worse else [])


def test_code_without_products_is_compared_where_it_moves_the_same_bytes() -> None:
    def judged(cycles: float | None, issues: dict[str, int], loops: int = 1) -> Judgement:
        bound = {} if cycles is None else {"issue": 100.0}
        before = LoopCounts(issues={"global_loads:16B": 1, "float_arithmetic": 8}, cycles=bound)
        one = LoopCounts(issues=issues, cycles={} if cycles is None else {"issue": cycles})
        return judge_compiled(kernel(resources(loops=[one] * loops)), baseline(resources(loops=[before])))

    def verdict(**issues: int) -> list[str]:
        return judged(None, issues).worse

    assert verdict(**{"global_loads:4B": 4, "float_arithmetic": 8}) == ["loops"]  # narrower loads
    assert verdict(**{"global_loads:16B": 1, "float_arithmetic": 8, "conversions": 1}) == ["loops"]
    larger = {"global_loads:16B": 2, "float_arithmetic": 16}  # a larger block
    assert judged(None, larger).verdict is Verdict.INCOMPARABLE
    assert judged(201.0, larger).verdict is Verdict.OK
    longer = judged(204.0, larger)
    assert (longer.verdict, longer.worse) == (Verdict.REGRESSED, ["loops"])
    assert longer.reasons == ["its main loop takes at least ×1.02 the cycles for as many bytes (issue)"]
    without = judged(900.0, {"integer_arithmetic": 400}, loops=33)  # a slow path, unrolled
    assert without.verdict is Verdict.INCOMPARABLE
    (said,) = without.reasons
    assert "33 with 400 instructions in the main one instead of 1" in said


def test_spills_in_a_loop_are_worse_and_an_indexed_array_is_none() -> None:
    was, now = loop(), loop(local_memory=2, moves=20)
    spilling = {"spill_store_bytes": 8, "spill_load_bytes": 8}
    before = baseline(resources(loops=[was], **spilling))
    assert judge_compiled(kernel(resources(loops=[now], **spilling)), before).worse == ["loops"]
    assert judge_compiled(kernel(resources(loops=[now])), baseline(resources(loops=[was]))).worse == []


def test_a_worse_loop_is_told_with_its_rows(snapshot: SnapshotAssertion) -> None:
    failing = result_for(kernel(resources(loops=[loop(conversions=40)])), baseline(resources(loops=[loop()])))
    assert explain_kernel(failing, None) == snapshot


def test_the_loop_that_counts_does_most_in_tensor_cores_and_is_the_shortest_of_these() -> None:
    long, short, setup = loop(moves=80), loop(), LoopCounts(issues={"moves": 900})
    assert resources(loops=[setup, long, short]).main_loop == short
    assert resources(loops=[LoopCounts(issues={"moves": 2}), setup]).main_loop == setup
    assert resources().main_loop is None


@pytest.mark.parametrize(
    "changes",
    [
        {"registers": 101},
        {"registers": 90},
        {"dynamic_shared_bytes": 70_000},
        {"stack_bytes": 16},
        {"num_stages": 4},
        {"instructions": {"wgmma": 8, "tma": 2}},
    ],
)
def test_what_may_change_either_way_is_shown_and_not_judged(changes: dict[str, Any]) -> None:
    judgement = judged(**changes)
    assert (judgement.verdict, judgement.worse) == (Verdict.OK, [])
    assert [change for change in judgement.counts.values() if change.now != change.before]


@pytest.mark.parametrize(
    ("changes", "worse"),
    [
        ({"spill_store_bytes": 8, "spill_load_bytes": 4}, "spills"),
        ({"instructions": {"mma": 64, "tma": 4}}, "tensor cores"),
        ({"instructions": {"tma": 4}}, "tensor cores"),
        ({"instructions": {"wgmma": 8, "mma": 32, "tma": 4}}, "tensor cores"),
        ({"instructions": {"wgmma": 16}}, "tma"),
        ({"blocks_per_sm": 1, "warps_per_sm": 8}, "occupancy"),
    ],
)
def test_a_kernel_that_got_worse_is_regressed_and_says_by_what(
    changes: dict[str, Any], worse: str, snapshot: SnapshotAssertion
) -> None:
    judgement = judged(**changes)
    assert (judgement.verdict, judgement.worse) == (Verdict.REGRESSED, [worse])
    assert judgement.reasons == snapshot


@pytest.mark.parametrize(
    "before",
    [{"spill_store_bytes": 8}, {"instructions": {"mma": 64, "tma": 4}}, {"blocks_per_sm": 1, "warps_per_sm": 8}],
)
def test_a_kernel_that_got_better_is_improved(before: dict[str, Any]) -> None:
    assert judge_compiled(kernel(), baseline(resources(**before))).verdict is Verdict.IMPROVED


def test_unchanged_is_ok_better_makes_up_for_no_worse_and_what_cannot_run_is_broken() -> None:
    assert (judged().verdict, judged().reasons) == (Verdict.OK, [])
    assert judged(num_warps=16, blocks_per_sm=1).verdict is Verdict.OK, "fewer blocks of more warps are no less"
    assert judge_compiled(kernel(), None).verdict is Verdict.NEW
    now = resources(spill_store_bytes=4, warps_per_sm=32, blocks_per_sm=4)
    assert judge_compiled(kernel(now), baseline()).worse == ["spills"]


TOO_MUCH = resources(dynamic_shared_bytes=233_000, blocks_per_sm=0, warps_per_sm=0)
TOO_WIDE = resources(tensor_columns=1024, blocks_per_sm=0, warps_per_sm=0, limited_by="tensor memory")
MFMA: dict[str, Any] = {"ptxas": "", "instructions": {"mfma": 8}}
BROKEN = kernel(problem="NameError: x\nin: y = x")
JUDGED: dict[str, tuple[Verdict, list[str], CompiledKernel, KernelBaseline | None]] = {
    "past the limit": (Verdict.FAILED, [], kernel(TOO_MUCH), None),
    "past the limit, once within": (Verdict.REGRESSED, ["shared memory", "occupancy"], kernel(TOO_MUCH), baseline()),
    "past the limit, by another compiler": (Verdict.FAILED, [], kernel(TOO_MUCH), baseline(triton="3.8.0")),
    "more tensor memory than a block can have": (Verdict.FAILED, [], kernel(TOO_WIDE, arch=100), None),
    "products of AMD that are lost": (
        Verdict.REGRESSED,
        ["tensor cores"],
        kernel(resources(ptxas="", instructions={}), arch="gfx942"),
        baseline(resources(**MFMA)),
    ),
    "not compiled for AMD": (Verdict.FAILED, [], kernel(problem="x", arch="gfx950"), None),
    "not compiled": (Verdict.FAILED, [], BROKEN, None),
    "not compiled, as it once was": (Verdict.REGRESSED, ["compiling"], BROKEN, baseline()),
    "by another triton": (
        Verdict.INCOMPARABLE, [], kernel(resources(spill_store_bytes=400)), baseline(triton="3.8.0"),
    ),
    "by another ptxas": (
        Verdict.INCOMPARABLE, [], kernel(resources(spill_store_bytes=400)), baseline(resources(ptxas="12.9.86")),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("verdict", "worse", "now", "before"), JUDGED.values(), ids=JUDGED)
def test_what_cannot_run_fails_and_what_another_compiler_made_is_not_compared(
    verdict: Verdict, worse: list[str], now: CompiledKernel, before: KernelBaseline | None, snapshot: SnapshotAssertion
) -> None:
    judgement = judge_compiled(now, before)
    assert (judgement.verdict, judgement.worse) == (verdict, worse)
    assert judgement.reasons == snapshot


def test_what_cannot_run_is_broken() -> None:
    assert [is_broken(one) for one in (kernel(TOO_MUCH), BROKEN, kernel())] == [True, True, False]


def test_a_kernel_of_amd_is_named_like_others() -> None:
    one = result("k.py::attend[gfx942]", outcome=CompiledCase(now=kernel(arch="gfx942")))
    assert [line.text for line in kernel_table([one])][2].startswith(" gfx942")


# --- what is said of it --------------------------------------------------------------------------------------

SPILLING = {"registers": 255, "spill_store_bytes": 528, "spill_load_bytes": 516, "blocks_per_sm": 1, "warps_per_sm": 8}


def result_for(now: CompiledKernel, before: KernelBaseline | None, **changes: Any) -> Result:
    case = CompiledCase(now=now, before=before.resources if before else None)
    fields: dict[str, Any] = {"case": f"t.py::test_kernel[attend-sm{now.arch}]", "outcome": case}
    return Result(**{**fields, "judgement": judge_compiled(now, before), **changes})


def test_a_failure_shows_what_it_took_before_and_takes_now(snapshot: SnapshotAssertion) -> None:
    failing = result_for(kernel(resources(**SPILLING)), baseline())
    assert explain_kernel(failing, "perflab kernels --update") == snapshot


@pytest.mark.parametrize(
    ("before", "now", "failed"),
    [
        ({}, {"instructions": {"mma": 64, "tma": 4}}, {"wgmma": "kept", "mma": "new"}),
        ({}, {"instructions": {"wgmma": 24}}, {"tma": "kept"}),
        ({"spill_store_bytes": 40}, {"spill_load_bytes": 80}, {"spill load bytes": "exact"}),
        ({}, {"dynamic_shared_bytes": 233_000, "blocks_per_sm": 1}, {"dynamic shared bytes": "232,448"}),
        ({}, {"blocks_per_sm": 0, "limited_by": "tensor memory"}, {"blocks per sm": "1"}),
    ],
    ids=["tensor cores", "tma", "spills", "shared memory", "tensor memory"],
)
def test_the_rows_that_failed_are_first_and_marked_with_what_they_were_held_to(
    before: dict[str, Any], now: dict[str, Any], failed: dict[str, str]
) -> None:
    with_both = {"instructions": {"wgmma": 24, "tma": 4}}
    failing = result_for(kernel(resources(**with_both | now)), baseline(resources(**with_both | before)))
    table = (explain_kernel(failing, None) or "").split("limit\n")[1].split("\nwhy: ")[0].splitlines()
    marked = [line.removesuffix("  failed") for line in table if line.endswith("  failed")]
    assert table[: len(marked)] == [f"{line}  failed" for line in marked]
    assert {line.split("  ")[0]: line.split()[-1] for line in marked} == failed


def test_a_kernel_that_does_not_compile_shows_what_the_compiler_said() -> None:
    assert explain_kernel(result_for(BROKEN, None), None) == f"attend[sm_90] does not compile\n{BROKEN.problem}"


def test_the_table_has_a_line_for_each_architecture_and_fits_80_columns(snapshot: SnapshotAssertion) -> None:
    results = [
        result_for(kernel(resources(loops=[loop()]), arch=80), baseline(), saved=True),
        result_for(kernel(resources(**SPILLING)), baseline()),
        result_for(kernel(arch=100), baseline(triton="3.8.0"), saved=True),
        result_for(kernel(name="broken", problem="NameError: x"), None),
        result_for(kernel(resources(spill_store_bytes=38_032), name="drowned"), None),
    ]
    lines = [line.text for line in kernel_table(results)]
    assert "\n".join(lines) == snapshot
    assert max(map(len, lines)) <= 80


def test_measured_and_compiled_cases_stand_in_one_summary_with_one_tally(snapshot: SnapshotAssertion) -> None:
    run = document(result(), result_for(kernel(resources(**SPILLING)), baseline(), failure="spills"), exitstatus=1)
    assert "\n".join(line.text for line in summary(run)) == snapshot(name="text")
    assert markdown(run) == snapshot(name="markdown")
