"""What counts as a disturbance; a slowdown beside one is nobody's fault yet, and tables mark the cases beside one."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.judging.doubts import KEPT_CORE, NEIGHBOURS_CORES, SHARING_AT_MOST, disturbances, is_witnessed
from perflab.report.summary import markdown, summary
from perflab.results.measured import Entry
from perflab.results.measurement import Replicate
from perflab.results.records import Judgement, Policy, Verdict
from perflab.results.result import Result
from tests.harness.make import (
    MS,
    cuda_environment,
    document,
    entry,
    environment,
    judge,
    quiet,
    record,
    replicate,
    result,
)

SLOW = 130 * MS
CALM = {"neighbours_cores": 0.02, "steal_share": 0.0}
BUSY = "other processes used 1.6 cores meanwhile"
VERDICTS = (Verdict.OK, Verdict.IMPROVED, Verdict.NEW, Verdict.INCONCLUSIVE, Verdict.REGRESSED, Verdict.UNCHECKED)


def told(now: dict[str, Any], before: dict[str, Any] | None = None, cores: int = 2) -> list[str]:
    """What disturbed replicates with the figures ``now``, against a baseline with those of ``before``."""
    return disturbances(quiet(SLOW, **now), quiet(100 * MS, **(before or {})), environment(cores=cores))


def judged(fresh: list[Replicate], before: list[Replicate] | None = None, **changes: Any) -> Judgement:
    machine = environment(**changes)
    return judge(record(fresh[0], fresh=fresh, environment=machine), entry(before, environment=machine), Policy())


# --- what is told of neighbours, stolen time and the GPU ---------------------------------------------------------

HOT = {"throttle": ["hardware slowdown", "hardware thermal slowdown", "power cap"], "temperature_c": 91}
TOLD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "neighbours": ({"neighbours_cores": 0.52}, {}),
    "more neighbours than in the baseline": ({"neighbours_cores": 1.3}, {"neighbours_cores": 1.0}),
    "stolen time": ({"steal_share": 0.12}, {}),
    "heat": (HOT, {}),
    "the power brake": ({"throttle": ["power brake"]}, {}),
    "another process on the GPU": ({"gpu_neighbours": 1}, {}),
    "more processes on the GPU than in the baseline": ({"gpu_neighbours": 3}, {"gpu_neighbours": 1}),
}


@pytest.mark.parametrize(("now", "before"), TOLD.values(), ids=TOLD)
def test_what_disturbed_a_case_is_told_with_its_figures(
    now: dict[str, Any], before: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    assert told(now, before) == snapshot


@pytest.mark.parametrize(
    ("now", "before"),
    [
        *(({"neighbours_cores": cores}, {}) for cores in (None, 0.0, NEIGHBOURS_CORES)),  # a machine's housekeeping
        ({"neighbours_cores": 1.1}, {"neighbours_cores": 1.0}),
        ({"steal_share": 0.12}, {"steal_share": 0.11}),
        ({"steal_share": 0.01}, {}),
        (HOT, HOT),
        ({"throttle": ["idle", "power cap", "application clocks"], "temperature_c": 60}, {}),  # the work's own
        ({"gpu_neighbours": 1}, {"gpu_neighbours": 1}),
    ],
)
def test_what_is_small_or_was_as_large_in_the_baseline_is_no_disturbance(
    now: dict[str, Any], before: dict[str, Any]
) -> None:
    assert told(now, before) == []


def test_neighbours_count_where_they_leave_less_than_half_of_the_cores() -> None:
    one_thread = {"neighbours_cores": 1.0, "cores_busy": 1.0}
    assert told(one_thread, cores=2) != []
    assert told(one_thread, cores=16) == []
    assert told({**one_thread, "cores_busy": 15.5}, cores=16) != []
    assert told({"neighbours_cores": 1.0}, cores=16) != []  # how many cores the case needs is not known


def test_one_disturbed_process_of_three_is_no_disturbance_of_all() -> None:
    fresh = [*quiet(SLOW, **CALM)[:2], replicate(SLOW, neighbours_cores=1.0, steal_share=0.3)]
    assert disturbances(fresh, quiet(100 * MS), environment()) == []


def test_silence_means_calm_only_where_the_figures_are_known() -> None:
    on_gpu = {**CALM, "gpu_neighbours": 0, "temperature_c": 50}
    assert is_witnessed(quiet(SLOW, **CALM), environment())
    assert not is_witnessed(quiet(SLOW), environment())
    assert not is_witnessed([*quiet(SLOW, **CALM), replicate()], environment())
    assert not is_witnessed(quiet(SLOW, **CALM), cuda_environment())
    assert is_witnessed(quiet(SLOW, **on_gpu), cuda_environment())


# --- the judge ---------------------------------------------------------------------------------------------------


BESIDE = told({"neighbours_cores": 0.5})
SLOWER: dict[str, tuple[list[Replicate], list[Replicate] | None, Verdict, list[str] | None]] = {
    "calm": (quiet(SLOW, **CALM), quiet(100 * MS, **CALM), Verdict.REGRESSED, []),
    "beside neighbours": (
        quiet(SLOW, neighbours_cores=0.5, steal_share=0.0),
        quiet(100 * MS, **CALM),
        Verdict.INCONCLUSIVE,
        BESIDE,
    ),
    "calm, where the baseline has no evidence": (quiet(SLOW, **CALM), None, Verdict.REGRESSED, []),
    "beside neighbours, where it has none": (quiet(SLOW, neighbours_cores=0.5), None, Verdict.INCONCLUSIVE, BESIDE),
    "without evidence": (quiet(SLOW), None, Verdict.REGRESSED, None),
}


@pytest.mark.parametrize(("fresh", "before", "verdict", "disturbed"), SLOWER.values(), ids=SLOWER)
def test_a_slowdown_beside_neighbours_is_inconclusive_and_calm_is_said_where_it_is_known(
    fresh: list[Replicate], before: list[Replicate] | None, verdict: Verdict, disturbed: list[str] | None
) -> None:
    judgement = judged(fresh, before)
    assert (judgement.verdict, judgement.disturbed) == (verdict, disturbed)
    assert judgement.reasons == (disturbed or [])


def test_neighbours_say_nothing_of_a_case_that_is_no_slower_or_needs_more_memory() -> None:
    assert judged(quiet(100 * MS, neighbours_cores=1.0)).verdict is Verdict.OK
    hungrier = quiet(100 * MS, peak_bytes=2**21, neighbours_cores=1.0)
    assert judged(hungrier, quiet(100 * MS, peak_bytes=2**20)).verdict is Verdict.REGRESSED


@pytest.mark.parametrize(
    ("ratio", "cores_busy", "verdict"),
    [
        (1.1 * SHARING_AT_MOST, 1.0, Verdict.REGRESSED),
        (0.9 * SHARING_AT_MOST, 1.0, Verdict.INCONCLUSIVE),
        (1.1 * SHARING_AT_MOST, 0.9 * KEPT_CORE, Verdict.INCONCLUSIVE),  # it was pushed aside
        (1.1 * SHARING_AT_MOST, 1.9, Verdict.INCONCLUSIVE),  # threads that wait for each other
        (1.1 * SHARING_AT_MOST, None, Verdict.INCONCLUSIVE),
    ],
)
def test_a_slowdown_beyond_what_neighbours_do_to_a_thread_that_keeps_its_core_is_the_codes(
    ratio: float, cores_busy: float | None, verdict: Verdict
) -> None:
    fresh = quiet(ratio * 100 * MS, neighbours_cores=1.0, cores_busy=cores_busy)
    judgement = judged(fresh, quiet(100 * MS, cores_busy=None if cores_busy is None else max(1.0, cores_busy)))
    assert judgement.verdict is verdict
    assert judgement.disturbed == told({"neighbours_cores": 1.0})


def test_a_disturbance_that_the_baseline_had_less_of_is_named_once_with_its_figure_then() -> None:
    now, before = quiet(900 * MS, neighbours_cores=1.0, steal_share=0.1), quiet(MS, neighbours_cores=0.5, steal_share=1)
    judgement = judged(now, before)
    assert judgement.disturbed == ["other processes used 1.0 cores meanwhile (in the baseline 0.5)"]
    assert judgement.beside_alone == judgement.beside[1:]
    assert [text.split()[:2] for text in judgement.beside] == [["other", "processes"], ["the", "hypervisor"]]


def test_on_a_gpu_any_slowdown_may_be_another_processes() -> None:
    fresh = quiet(900 * MS, gpu_neighbours=1, cores_busy=1.0)
    machine = cuda_environment()
    baseline = entry(quiet(100 * MS, cores_busy=1.0), environment=machine)
    judgement = judge(record(fresh[0], fresh=fresh, environment=machine), baseline, Policy())
    assert judgement.verdict is Verdict.INCONCLUSIVE


def one(name: str, verdict: Verdict = Verdict.OK, busy: bool = True, **changes: object) -> Result:
    case = f"t.py::test_attend[{name}]"
    judgement = Judgement(verdict=verdict, beside=[BUSY] if busy else [])
    return result(case, outcome=record(case=case, parameters={"impl": name}), judgement=judgement, **changes)


@pytest.mark.parametrize("saved", [None, entry(), entry(quiet(100e6, neighbours_cores=1.6))])
def test_the_judge_tells_it_whatever_it_is_compared_with(saved: Entry | None) -> None:
    assert judge(record(replicate(neighbours_cores=1.6)), saved, Policy()).beside == [BUSY]
    assert judge(record(replicate(neighbours_cores=0.0)), saved, Policy()).beside == []


def lines(*results: Result) -> list[str]:
    return [line.text for line in summary(document(*results))]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_disturbed_row_names_what_disturbed_it(verdict: Verdict) -> None:
    run = [one("flash", verdict), one("naive", verdict, busy=False)]
    assert lines(*run).count(f"  disturbed: {BUSY}") == 1
    assert markdown(document(*run)).count(f"<br>disturbed: {BUSY}") == 1
    assert "disturbed while" not in markdown(document(*run)), "there is no mark to explain"


def test_side_by_side_and_studies_mark_it_at_its_name(snapshot: SnapshotAssertion) -> None:
    run = [
        one("flash", side_by_side="impl", study="attention"),
        one("naive", busy=False, side_by_side="impl", study="attention"),
    ]
    assert "\n".join(lines(*run)) == snapshot(name="text")
    assert markdown(document(*run)) == snapshot(name="markdown")
    assert not any("* disturbed" in line for line in lines(*run[1:]))


def test_what_was_accepted_is_counted_as_that_and_stands_among_what_is_well(snapshot: SnapshotAssertion) -> None:
    run = [one("a", Verdict.OK, busy=False), one("b", Verdict.REGRESSED, busy=False, saved=True)]
    assert lines(*run)[-1].startswith("1 ok · 1 accepted")
    assert markdown(document(*run)) == snapshot
