"""The judge of compiled kernels, case by case; and what its reports say."""

from __future__ import annotations

from typing import Any

import pytest

from perflab.compiled.judge import is_broken, judge_compiled
from perflab.compiled.report import explain_kernel, kernel_table
from perflab.report.summary import markdown, summary
from perflab.results.compiled import CompiledCase, CompiledKernel, KernelBaseline, LoopCounts
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Result
from tests.harness.make import baseline, document, kernel, resources, result


def judged(**changes: Any) -> Judgement:
    return judge_compiled(kernel(resources(**changes)), baseline())


def loop(cycles: float = 700.0, **issues: int) -> LoopCounts:
    """A loop of 8 products, 32 exponentials, 16 conversions and 40 moves, bound by issuing them."""
    counts = {"tensor_products:64x64x16": 8, "exponentials": 32, "conversions": 16, "moves": 40} | issues
    return LoopCounts(
        issues={kind: count for kind, count in counts.items() if count},
        cycles={"tensor cores": 512.0, "issue": cycles},
        flops=2_097_152,
        share_of_peak=0.731,
    )


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        ([loop()], None),
        ([loop(conversions=40)], "loop 1 issues 24 more conversions"),
        ([loop(712.0)], None),  # the same instructions in another order
        (
            [loop(712.0, conversions=20, moves=30)],
            "loop 1 issues 4 more conversions; an iteration takes at least 712 cycles instead of 700 (issue)",
        ),
        ([loop(nothing=8, moves=38)], None),  # placeholders are no work
        ([loop(690.0, conversions=20, moves=30)], None),  # more of a kind, and fewer in all
        ([loop(conversions=20, moves=36)], "loop 1 issues 4 more conversions"),
        ([loop(moves=39)], None),
        # Another unrolling, or another number of loops, is another loop: shown by its products alone.
        ([loop(**{"tensor_products:64x64x16": 16, "moves": 80})], None),
        ([loop(moves=90), loop()], None),
    ],
)
def test_a_loop_that_issues_more_is_worse(now: list[LoopCounts], worse: str | None) -> None:
    judgement = judge_compiled(kernel(resources(loops=now)), baseline(resources(loops=[loop()])))
    assert judgement.worse == (["loops"] if worse else [])
    assert judgement.reasons == ([worse] if worse else [])


def test_code_without_products_is_compared_where_it_moves_the_same_bytes() -> None:
    def verdict(**issues: int) -> list[str]:
        before = LoopCounts(issues={"global_loads:16B": 1, "float_arithmetic": 8})
        now = resources(loops=[LoopCounts(issues=issues)])
        return judge_compiled(kernel(now), baseline(resources(loops=[before]))).worse

    assert verdict(**{"global_loads:4B": 4, "float_arithmetic": 8}) == ["loops"]  # narrower loads
    assert verdict(**{"global_loads:16B": 1, "float_arithmetic": 8, "conversions": 1}) == ["loops"]
    assert verdict(**{"global_loads:16B": 2, "float_arithmetic": 16}) == []  # a larger block


def test_spills_in_a_loop_are_worse_and_an_indexed_array_is_none() -> None:
    was, now = loop(), loop(local_memory=2, moves=20)
    spilling = {"spill_store_bytes": 8, "spill_load_bytes": 8}
    before = baseline(resources(loops=[was], **spilling))
    assert judge_compiled(kernel(resources(loops=[now], **spilling)), before).worse == ["loops"]
    assert judge_compiled(kernel(resources(loops=[now])), baseline(resources(loops=[was]))).worse == []


def test_a_worse_loop_is_told_with_its_rows() -> None:
    failing = result_for(kernel(resources(loops=[loop(conversions=40)])), baseline(resources(loops=[loop()])))
    told = (explain_kernel(failing, None) or "").splitlines()
    assert told[0] == "attend[sm_90] is worse than its baseline: more work in a loop"
    assert [line.split() for line in told if line.startswith("loop 1 conversions")] == [
        ["loop", "1", "conversions", "16", "40", "+24", "exact", "failed"]
    ]
    assert told[-1] == "why: loop 1 issues 24 more conversions"


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
    ("changes", "worse", "why"),
    [
        ({"spill_store_bytes": 8, "spill_load_bytes": 4}, "spills", "spills 12 B of registers per thread"),
        ({"instructions": {"mma": 64, "tma": 4}}, "tensor cores", "lost wgmma: its products run as mma now"),
        ({"instructions": {"tma": 4}}, "tensor cores", "lost wgmma: its products no longer run on tensor cores"),
        (
            {"instructions": {"wgmma": 8, "mma": 32, "tma": 4}},
            "tensor cores",
            "some of its products run as mma now, beside wgmma",
        ),
        ({"instructions": {"wgmma": 16}}, "tma", "its copies no longer use TMA"),
        (
            {"blocks_per_sm": 1, "warps_per_sm": 8},
            "occupancy",
            "8 warps fit onto a multiprocessor at once instead of 16: limited by registers",
        ),
    ],
)
def test_a_kernel_that_got_worse_is_regressed_and_says_by_what(changes: dict[str, Any], worse: str, why: str) -> None:
    judgement = judged(**changes)
    assert (judgement.verdict, judgement.worse) == (Verdict.REGRESSED, [worse])
    assert judgement.reasons[0].startswith(why)


@pytest.mark.parametrize(
    "before",
    [{"spill_store_bytes": 8}, {"instructions": {"mma": 64, "tma": 4}}, {"blocks_per_sm": 1, "warps_per_sm": 8}],
)
def test_a_kernel_that_got_better_is_improved(before: dict[str, Any]) -> None:
    assert judge_compiled(kernel(), baseline(resources(**before))).verdict is Verdict.IMPROVED


def test_the_same_is_ok_and_without_a_baseline_new() -> None:
    assert (judged().verdict, judged().reasons) == (Verdict.OK, [])
    assert judged(num_warps=16, blocks_per_sm=1).verdict is Verdict.OK, "fewer blocks of more warps are no less"
    assert judge_compiled(kernel(), None).verdict is Verdict.NEW


def test_better_in_one_way_does_not_make_up_for_worse_in_another() -> None:
    now = resources(spill_store_bytes=4, warps_per_sm=32, blocks_per_sm=4)
    assert judge_compiled(kernel(now), baseline()).worse == ["spills"]


TOO_MUCH: dict[str, Any] = {"dynamic_shared_bytes": 233_000, "blocks_per_sm": 0, "warps_per_sm": 0}


def test_shared_memory_past_the_limit_fails_with_and_without_a_baseline() -> None:
    too_much = resources(**TOO_MUCH)
    said = "needs 233,000 B of shared memory per block, but sm_90 has 232,448"
    alone = judge_compiled(kernel(too_much), None)
    assert (alone.verdict, alone.reasons) == (Verdict.FAILED, [said])
    against = judge_compiled(kernel(too_much), baseline())
    assert (against.verdict, against.worse[0], against.reasons[0]) == (Verdict.REGRESSED, "shared memory", said)
    assert is_broken(kernel(too_much))


def test_limits_hold_for_another_compilers_kernel_too() -> None:
    judgement = judge_compiled(kernel(resources(**TOO_MUCH)), baseline(triton="3.8.0"))
    assert judgement.verdict is Verdict.FAILED
    assert "shared memory" in judgement.reasons[0]


def test_tensor_memory_that_no_block_can_have_fails() -> None:
    wide = resources(tensor_columns=1024, blocks_per_sm=0, warps_per_sm=0, limited_by="tensor memory")
    assert judge_compiled(kernel(wide, arch=100), None).reasons == [
        "no block fits onto a multiprocessor of sm_100: limited by tensor memory"
    ]


def test_a_kernel_of_amd_is_named_and_judged_like_others() -> None:
    with_products = {"ptxas": "", "instructions": {"mfma": 8}}
    before = baseline(resources(**with_products))
    judgement = judge_compiled(kernel(resources(**{**with_products, "instructions": {}}), arch="gfx942"), before)
    assert judgement.reasons == ["lost mfma: its products no longer run on matrix cores"]
    result = Result(case="k.py::attend[gfx942]", judgement=judgement, outcome=CompiledCase(now=kernel(arch="gfx942")))
    assert [line.text for line in kernel_table([result])][2].startswith(" gfx942")
    assert judge_compiled(kernel(problem="x", arch="gfx950"), None).reasons == ["does not compile for gfx950: x"]


def test_what_does_not_compile_fails_and_regressed_if_it_once_did() -> None:
    broken = kernel(problem="NameError: x\nin: y = x")
    assert judge_compiled(broken, None) == Judgement(
        verdict=Verdict.FAILED, reasons=["does not compile for sm_90: NameError: x"]
    )
    assert judge_compiled(broken, baseline()).verdict is Verdict.REGRESSED
    assert is_broken(broken)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (baseline(triton="3.8.0"), "baseline from another compiler: triton 3.8.0 then, 3.9.0 now"),
        (baseline(resources(ptxas="12.9.86")), "baseline from another compiler: ptxas 12.9.86 then, 13.4.59 now"),
    ],
)
def test_another_compilers_baseline_is_incomparable(before: KernelBaseline, said: str) -> None:
    judgement = judge_compiled(kernel(resources(spill_store_bytes=400)), before)
    assert (judgement.verdict, judgement.reasons) == (Verdict.INCOMPARABLE, [said])


# --- what is said of it --------------------------------------------------------------------------------------

SPILLING = {"registers": 255, "spill_store_bytes": 528, "spill_load_bytes": 516, "blocks_per_sm": 1, "warps_per_sm": 8}


def result_for(now: CompiledKernel, before: KernelBaseline | None, **changes: Any) -> Result:
    case = CompiledCase(now=now, before=before.resources if before else None)
    fields: dict[str, Any] = {"case": f"t.py::test_kernel[attend-sm{now.arch}]", "outcome": case}
    return Result(**{**fields, "judgement": judge_compiled(now, before), **changes})


def test_a_failure_shows_what_it_took_before_and_takes_now() -> None:
    failing = result_for(kernel(resources(**SPILLING)), baseline())
    assert (
        explain_kernel(failing, "perflab kernels --update")
        == """\
attend[sm_90] is worse than its baseline: spills more, lower occupancy
                   before  now  change  limit
spill store bytes       0  528    +528  exact  failed
spill load bytes        0  516    +516  exact  failed
warps per sm           16    8      -8  exact  failed
registers             100  255    +155   none
blocks per sm           2    1      -1   none
why: spills 1044 B of registers per thread (stores and loads) instead of 0
why: 8 warps fit onto a multiprocessor at once instead of 16: limited by
     registers
if intended: perflab kernels --update"""
    )


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
    failing = result_for(kernel(problem="NameError: x\nin: y = x"), None)
    assert explain_kernel(failing, None) == "attend[sm_90] does not compile\nNameError: x\nin: y = x"


def test_the_table_has_a_line_for_each_architecture_and_fits_80_columns() -> None:
    results = [
        result_for(kernel(resources(loops=[loop()]), arch=80), baseline(), saved=True),
        result_for(kernel(resources(**SPILLING)), baseline()),
        result_for(kernel(arch=100), baseline(triton="3.8.0"), saved=True),
        result_for(kernel(name="broken", problem="NameError: x"), None),
        result_for(kernel(resources(spill_store_bytes=38_032), name="drowned"), None),
    ]
    lines = [line.text for line in kernel_table(results)]
    assert (
        "\n".join(lines)
        == """\
kernel  regs spills   shared warps  limit    products bound  verdict
attend
 sm_80   100      – 64.0 KiB 16/64   regs    wgmma 16  73 %  ok, saved
 sm_90   255 1044 B 64.0 KiB  8/64   regs    wgmma 16     –  REGRESSED
    registers 100 -> 255 · spill store bytes 0 -> 528
    spill load bytes 0 -> 516 · warps per sm 16 -> 8 · blocks per sm 2 -> 1
    spills 1044 B of registers per thread (stores and loads) instead of 0; 8
    warps fit onto a multiprocessor at once instead of 16: limited by registers
 sm_100  100      – 64.0 KiB 16/64   regs    wgmma 16     –  incomparable, saved
    baseline from another compiler: triton 3.8.0 then, 3.9.0 now
broken
 sm_90     –      –        –     –      –           –     –  FAILED
    does not compile for sm_90: NameError: x
drowned
 sm_90   100 37 KiB 64.0 KiB 16/64   regs    wgmma 16     –  new"""
    )
    assert max(map(len, lines)) <= 80


def test_measured_and_compiled_cases_stand_in_one_summary_with_one_tally() -> None:
    run = document(result(), result_for(kernel(resources(**SPILLING)), baseline(), failure="spills"), exitstatus=1)
    shown = [line.text for line in summary(run)]
    assert shown[3] == "compiled: triton 3.9.0 · ptxas 13.4.59 (sm_90) · baselines/triton-3.9.0/"
    assert shown[-1] == "1 measured ok · 1 compiled regressed   (accept: --perf-update)"
    text = markdown(run)
    assert "| `step[small-128-fp32]` |" in text
    assert "| `attend[sm_90]` | 255 | 1044 B | 64.0 KiB | 8/64 | regs | wgmma 16 | – | **REGRESSED**" in text
    assert "<details><summary>attend[sm_90]: regressed</summary>" in text
