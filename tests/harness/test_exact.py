"""Exact quantities: what is compared across which environments, and how a save in one speaks for others."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.base.errors import BaselineError
from perflab.judging import judge as judging
from perflab.measured.baselines import ExactStore, split
from perflab.measured.report.facts import what_was_compared
from perflab.results.environment import exact_environment, exact_slug
from perflab.results.measured import Baseline, Exact, MemoryAnchor
from perflab.results.records import Environment, Judgement, Policy, Uncompared, Verdict
from tests.harness.make import CASE, cuda_environment, entry, environment, record, replicate, result

POLICY = Policy()


def exact(environment_: Environment | None = None, **changes: object) -> Exact:
    """100 bytes, 12 operators and 7 allocations."""
    of = environment_ or environment()
    fields = {"peak_bytes": [100], "counts": {"allocations": 7, "operators": 12}, "varying": None, **changes}
    return Exact(environment=exact_environment(of), **{"recorded": "2026-11-22", **fields})  # type: ignore[arg-type]


def judged(stored: Exact, *, peak_bytes: int = 100, operators: int = 12, allocations: int = 7) -> Judgement:
    """A case on a machine whose times are unknown, beside what is stored."""
    counts = {"operators": operators, "allocations": allocations}
    here = replicate(peak_bytes=peak_bytes, counts=counts)
    return judging.judge(record(here, fresh=[here]), Baseline(exact=stored), POLICY)


def test_a_peak_that_was_not_measured_when_its_baseline_was_saved_is_said(tmp_path: Path) -> None:
    ExactStore(tmp_path).save({CASE: exact(peak_bytes=[])}, lambda _case, _old, new: new)
    stored = ExactStore(tmp_path).of(CASE, environment())
    assert stored == exact(peak_bytes=[])
    (missed,) = judged(stored).not_compared
    assert (missed.quantity, missed.reason) == ("memory", "not measured when its baseline was saved")


def test_without_times_memory_and_counts_are_judged_and_what_is_missing_is_said() -> None:
    judgement = judged(exact())
    assert judgement.verdict is Verdict.OK
    assert judgement.latency is None
    assert judgement.no_times == "no times of this machine yet"
    old = MemoryAnchor(recorded="2026-01-01", peak_bytes=90, steps=2)
    judgement = judged(exact(environment(threads=8), memory_anchor=old))
    assert (judgement.verdict, judgement.worse, judgement.not_compared) == (Verdict.REGRESSED, ["memory"], [])


@pytest.mark.parametrize(
    ("change", "worse"),
    [({"peak_bytes": 101}, ["memory"]), ({"operators": 13}, ["counts"]), ({"allocations": 8}, ["counts"])],
)
def test_each_quantity_that_grew_fails_without_times(change: dict[str, int], worse: list[str]) -> None:
    judgement = judged(exact(), **change)
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.worse == worse


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(exact(environment(torch="other")), id="another PyTorch"),
        pytest.param(exact(environment(system="other")), id="another system"),
        pytest.param(exact(environment(threads=8), counts={}), id="nothing that other threads leave alone"),
    ],
)
def test_where_nothing_could_be_compared_the_case_is_incomparable_and_names_the_difference(
    stored: Exact, snapshot: SnapshotAssertion
) -> None:
    judgement = judged(stored, peak_bytes=164)
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert judgement.reasons == snapshot


def test_the_gpus_model_and_the_cuda_build_decide_and_its_driver_does_not() -> None:
    here = cuda_environment()
    case = record(replicate(peak_bytes=100_000), environment=here)
    for field, verdict in {
        "device_name": "incomparable",
        "cuda": "incomparable",
        "driver": "ok",
        "cores": "ok",
    }.items():
        other = exact(cuda_environment(**{field: 64 if field == "cores" else "other"}), peak_bytes=[100_000], counts={})
        assert judging.judge(case, Baseline(exact=other), POLICY).verdict == verdict, field


@pytest.mark.parametrize("field", ["cores", "device_name", "machine", "triton"])
def test_a_cpus_name_cores_and_machine_do_not_matter(field: str) -> None:
    assert exact_environment(environment(**{field: 3 if field == "cores" else "x"})) == exact_environment(environment())


def test_across_thread_counts_operators_are_gated_and_bytes_only_as_far_as_they_agree() -> None:
    stored = exact(environment(threads=8))
    assert judged(stored).verdict is Verdict.OK
    assert judged(stored, operators=13).worse == ["counts"]
    judgement = judged(stored, peak_bytes=164, allocations=9)
    assert judgement.verdict is Verdict.OK
    assert judgement.memory is None
    assert list(judgement.counts) == ["operators"]
    why = "saved with 8 threads, here 2"
    assert judgement.not_compared == [
        Uncompared("memory", why, can_be_saved=True, elsewhere=True),
        Uncompared("allocations", why, can_be_saved=True, elsewhere=True),
    ]
    assert judged(stored).not_compared == [], "equal values are compared"


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"threads": 1}, "saved with 1 thread, here 2"),
        ({"threads": 4, "isa": "AVX512"}, "saved with 4 threads and AVX512, here 2 and AVX2"),
        ({"features": "amx_tile, 48K 2048K"}, "saved with amx_tile, here none"),
    ],
)
def test_why_a_quantity_was_not_compared_names_both_sides(there: dict[str, object], why: str) -> None:
    assert [one.reason for one in judged(exact(environment(**there)), peak_bytes=164).not_compared] == [why]


def test_times_that_were_compared_speak_for_no_memory_that_was_not() -> None:
    here = replicate(peak_bytes=164, counts={"operators": 12})
    judgement = judging.judge(record(here), Baseline(times=entry()), POLICY)
    assert judgement.verdict is Verdict.OK
    assert judgement.not_compared == [
        Uncompared("memory", "no baseline yet", can_be_saved=True),
        Uncompared("operators", "no baseline yet", can_be_saved=True),
    ]


def test_what_is_not_measured_or_not_to_be_gated_is_not_missed() -> None:
    here = replicate(counts={"operators": 12, "allocations": 7})
    judgement = judging.judge(record(here), Baseline(exact=exact()), POLICY)
    assert judgement.not_compared == [Uncompared("memory", "not measured here")]
    here, ungated = replicate(peak_bytes=100, counts={"allocations": 9}), Policy(gate_counts=False)
    judgement = judging.judge(record(here), Baseline(exact=exact(environment(threads=8))), ungated)
    assert (judgement.verdict, judgement.not_compared) == (Verdict.OK, [])


def test_the_run_says_what_was_compared_and_what_not_in_a_line_a_reason(snapshot: SnapshotAssertion) -> None:
    stored = exact(environment(threads=8))
    whole, part = judged(stored), judged(stored, peak_bytes=164, allocations=9)
    only_memory = judged(stored, peak_bytes=164)
    results = [result(f"{CASE}{number}", judgement=one) for number, one in enumerate([whole, whole, part, only_memory])]
    assert what_was_compared(results) == snapshot
    assert what_was_compared([result(judgement=judged(exact()))]) == snapshot


# --- storing ------------------------------------------------------------------------------------------------------


def new(_case: str, _old: Exact | None, one: Exact) -> Exact:
    return one


def test_machines_that_agree_share_a_line_and_others_have_their_own(tmp_path: Path) -> None:
    store = ExactStore(tmp_path)
    store.save({CASE: exact()}, new)
    (path,) = store.save({CASE: exact(environment(cores=64, machine="b", device_name="Intel"))}, new)
    assert path.parent.name == exact_slug(exact_environment(environment())) == "exact-cpu-torch2.13"
    assert path.read_text().count('"operators"') == 1
    store.save({CASE: exact(environment(threads=8), peak_bytes=[164])}, new)
    assert path.read_text().count('"operators"') == 2
    found = [ExactStore(tmp_path).of(CASE, environment(threads=threads)) for threads in (2, 8)]
    assert [one.peak_bytes for one in found if one is not None] == [[100], [164]]


def test_what_environments_agreed_on_before_a_save_they_agree_on_after_it(tmp_path: Path) -> None:
    store = ExactStore(tmp_path)
    store.save({CASE: exact()}, new)
    store.save({CASE: exact(environment(threads=8), peak_bytes=[164])}, new)
    more = {"allocations": 8, "operators": 13}
    store.save({CASE: exact(counts=more, peak_bytes=[108])}, new)
    there = ExactStore(tmp_path).of(CASE, environment(threads=8))
    assert (there.counts, there.peak_bytes) == (more, [164])


def test_a_case_comes_back_as_it_was_saved_and_saving_it_again_changes_no_byte(tmp_path: Path) -> None:
    (path,) = ExactStore(tmp_path).save({CASE: exact(), CASE + "x": exact(parameters={"n": 1})}, new)
    before = path.read_bytes()
    ExactStore(tmp_path).save({CASE: exact()}, new)
    assert path.read_bytes() == before
    whole = exact(
        parameters={"naïve": "µ", "n": 1},
        memory_anchor=MemoryAnchor(recorded="2026-01-01", peak_bytes=90, steps=2),
        commit="abc+dirty",
    )
    ExactStore(tmp_path).save({CASE: whole}, new)
    assert ExactStore(tmp_path).of(CASE, environment()) == whole


def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path) -> None:
    (path,) = ExactStore(tmp_path).save({CASE: exact()}, new)
    path.write_text(path.read_text().replace('"operators": 12', '"operators": "many"'))
    damaged = path.read_bytes()
    with pytest.raises(BaselineError, match=r"(?s)is not a perflab baseline file.*counts.*restore it"):
        ExactStore(tmp_path).of(CASE, environment())
    with pytest.raises(BaselineError):
        ExactStore(tmp_path).save({CASE: exact()}, new)
    assert path.read_bytes() == damaged


def test_only_counts_on_which_all_replicates_agree_are_exact_and_instructions_stay_with_the_times() -> None:
    counts = [{"operators": 12, "recompiles": n, "instructions": 1000 + n} for n in (0, 0, 1)]
    parts = split(entry([replicate(peak_bytes=5, counts=one) for one in counts]))
    assert parts.exact.counts == {"operators": 12}
    assert parts.exact.varying == ["recompiles"]
    assert parts.times is not None
    assert [one.counts for one in parts.times.replicates] == [{"instructions": n} for n in (1000, 1000, 1001)]
    assert [one.memory for one in parts.times.replicates] == [None] * 3


def test_a_count_that_its_baseline_lost_is_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """One that varied is in the baseline too, by its name: of it nothing is to be said."""
    counts = [{"operators": 5, "allocations": 3, "recompiles": n} for n in (0, 0, 1)]
    whole = split(entry([replicate(peak_bytes=5, counts=one) for one in counts])).exact
    assert whole is not None
    now = record(replicate(peak_bytes=5, counts={"operators": 500, "allocations": 3, "recompiles": 7}))
    ExactStore(tmp_path).put({CASE: (changed(whole, counts={"allocations": 3}),)})
    found = judging.judge(now, Baseline(exact=ExactStore(tmp_path).of(CASE, environment())), Policy())
    assert found.verdict is Verdict.OK
    (lost,) = found.not_compared
    assert (lost.quantity, lost.can_be_saved) == ("operators", True)
    assert lost.reason == snapshot
    stored = Baseline(exact=ExactStore(tmp_path).of(CASE, environment()))
    assert judging.judge(now, stored, Policy(gate_counts=False)).not_compared == []
