"""The JSON of a report: what it has of each tier's cases, of several runs, and of a journal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed, to_json
from perflab.base.errors import DocumentError
from perflab.cli import main
from perflab.report.gather import Source, gather
from perflab.report.summary import markdown
from perflab.results.compiled import CompiledCase
from perflab.results.documents import read_document, read_journal, write_document
from perflab.results.measurement import OutOfMemory, Paired, Replicate
from perflab.results.peak import PeakChange, PeakExplanation
from perflab.results.profile import Explanation
from perflab.results.records import Judgement, Policy, Verdict
from perflab.results.result import Document, Result
from perflab.tables.contents import STEPS, quantiles
from perflab.tables.escaping import LONGEST_COMMENT
from tests.harness.command import Command
from tests.harness.large_page import large_run
from tests.harness.make import (
    CASE,
    GIB,
    MS,
    document,
    entry,
    environment,
    grown,
    judge,
    kernel,
    measurement,
    predicted_baseline,
    predicted_result,
    prediction,
    quiet,
    record,
    replicate,
    resources,
    result,
)
from tests.harness.test_damage import run_of_everything


def measured(now_ms: float, before_ms: float | None = None, **changes: Any) -> Result:
    """A case with samples, beside a baseline of three processes."""
    samples = [round(now_ms * MS * (1 + 0.001 * at)) for at in range(-5, 6)]
    taken = measurement([2 * one for one in samples], repetitions=2)
    counts = {"operators": 5, "allocations": 2}
    summary = replicate(
        now_ms * MS, peak_bytes=2 * GIB, counts=counts, phases_ns={"forward": 1e6}, calibration_ns={"memory": 7e6}
    )
    made = record(summary, measurement=taken, **changes)
    saved = entry(quiet(before_ms * MS, peak_bytes=GIB, counts={**counts, "operators": 4})) if before_ms else None
    return result(outcome=made, judgement=judge(made, saved, Policy()))


# --- one run -----------------------------------------------------------------------------------------------------


def test_a_measured_case_stands_with_its_numbers_and_what_they_were_compared_with(
    tmp_path: Path, command: Command
) -> None:
    write_document(changed(document(measured(100, 80)), commit="c0ffee+dirty"), tmp_path / "a.json")
    found = command.json("report", tmp_path / "a.json")
    assert (found["kind"], found["schema"]) == ("perflab report", 1)
    (run,) = found["runs"]
    assert (run["label"], run["commit"], run["complete"], run["exitstatus"]) == ("a.json", "c0ffee+dirty", True, 0)
    assert run["environments"][0]["device_name"] == environment().device_name
    (case,) = run["cases"]
    assert (case["case"], case["tier"], case["environment"], case["verdict"]) == (CASE, "measured", 0, "regressed")
    quantities = case["quantities"]
    assert list(quantities) == [
        "latency", "fastest", "forward", "peak", "operators", "allocations", "calibration memory",
    ]  # fmt: skip
    latency = quantities["latency"]
    assert (latency["unit"], latency["exact"], latency["now"], latency["before"]) == ("ns", False, 100 * MS, 80 * MS)
    assert latency["low"] < latency["ratio"] == 1.25 < latency["high"]
    assert latency["limit"] == 1.05
    peak = {"unit": "bytes", "exact": True, "now": 2 * GIB, "before": GIB, "ratio": 2.0, "limit": 1.0, "worse": True}
    assert quantities["peak"] == peak
    assert (quantities["operators"]["worse"], "worse" in quantities["allocations"]) == (True, False)
    assert quantities["calibration memory"] == {"unit": "ns", "exact": False, "now": 7e6}
    assert case["times"]["before_ns"] == [0.999 * 80 * MS, 80 * MS, 1.001 * 80 * MS]


def test_the_cause_of_a_higher_peak_is_there_as_data_and_in_words(snapshot: SnapshotAssertion) -> None:
    part = PeakChange(category="activations", change_bytes=2**20, more=3, operator="aten::mul", line="net.py:9")
    peak = PeakExplanation(base="main", before_bytes=GIB, now_bytes=GIB + 2**20, parts=[part])
    time = Explanation(base="main", before_ns=1e6, now_ns=2e6, parts=[], rest_ns=0.0)
    for explained in (None, time):
        one = result(outcome=record(replicate(100 * MS), explained=explained, explained_peak=peak))
        (case,) = gather([Source("a", document(one))]).runs[0].cases
        assert case.explained_peak == peak
        assert case.cause == snapshot


def test_samples_are_a_distribution_of_bounded_size() -> None:
    assert quantiles([5.0]) == [5.0] * (STEPS + 1)
    many = quantiles(float(one) for one in range(100_001))
    assert (len(many), many[0], many[10], many[-1]) == (STEPS + 1, 0.0, 50_000.0, 100_000.0)


@pytest.mark.parametrize("often", [1, 7])
def test_no_reading_is_shown_that_nobody_measured(often: int) -> None:
    taken = [10.0, 11.0, 12.0, 30.0, 31.0, 32.0] * often  # two ways to run, and nothing between them
    both = measurement([round(2 * one) for one in taken], repetitions=2)
    one = result(outcome=record(replicate(20.0, samples=len(taken)), measurement=both))
    times = gather([Source("a", document(one))]).runs[0].cases[0].times
    assert times is not None
    if often == 1:
        assert (times.samples_ns, times.quantiles_ns) == (taken, [])
    else:
        assert (times.samples_ns, len(times.quantiles_ns)) == ([], STEPS + 1)
        assert set(times.quantiles_ns) == set(taken)


def test_each_tier_says_what_it_knows() -> None:
    one = predicted_result(prediction(), changed(predicted_baseline(), peak_bytes=GIB))
    (run,) = gather([Source("a", changed(run_of_everything(), results=[one, *run_of_everything().results]))]).runs
    predicted = run.cases[0]
    assert (predicted.tier, predicted.environment, predicted.variant) == ("predicted", None, "h100")
    peak = predicted.quantities["peak"]
    assert (peak.unit, peak.exact, peak.before, peak.worse) == ("bytes", True, GIB, True)
    assert sum(predicted.memory.values()) == peak.now
    assert predicted.quantities["flops"].now > 0
    assert {table.key for table in predicted.tables} >= {"at_peak", "by_module"}
    compiled = next(case for case in run.cases if case.tier == "compiled")
    assert compiled.quantities["registers"].unit == "count"
    assert compiled.quantities["shared_bytes"].unit == "bytes"
    assert next(case for case in run.cases if case.verdict == "skipped").short_of[0].of == "--perf-budget"
    assert set(run.tables) == {"studies", "side_by_side"}
    assert run.verdicts["regressed"] == sum(case.verdict == "regressed" for case in run.cases)


def test_what_turns_said_and_readings_without_bound_are_json(tmp_path: Path, command: Command) -> None:
    paired = Paired(against="main", screen=[1.2, 1.3], detectable=float("inf"), base_ns=80.0 * MS)
    vague = record(replicate(100 * MS, noise=40.0), paired=paired)
    write_document(document(result(outcome=vague, judgement=judge(vague, entry(), Policy()))), tmp_path / "a.json")
    (case,) = command.json("report", tmp_path / "a.json")["runs"][0]["cases"]
    assert case["paired"]["screen"] == [1.2, 1.3]
    assert "latency" in case["quantities"]


def test_a_case_that_is_noise_alone_is_written_so_that_it_reads(tmp_path: Path) -> None:
    wild = record(replicate(5 * MS, noise=9.566))
    one = result(outcome=wild, judgement=judge(wild, entry([replicate(43 * MS, noise=60.0)]), Policy()))
    assert one.judgement.latency is not None
    assert one.judgement.latency.low is not None
    write_document(document(one), tmp_path / "a.json")
    latency = read_document(tmp_path / "a.json").results[0].judgement.latency
    assert latency is not None
    assert (latency.low, latency.high) == (0.0, None)
    assert latency.is_vague  # as it was before it was written


def test_a_report_as_json_is_named_as_what_it_is(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    write_document(document(measured(100)), tmp_path / "a.json")
    command("report", "a.json", "--format=json", "--output=report.json")
    assert [command(kind, "report.json", status=2) for kind in ("report", "merge")] == snapshot


# --- several runs ------------------------------------------------------------------------------------------------


def files(folder: Path, *runs: Document) -> list[Path]:
    paths = [folder / f"{name}.json" for name in "abc"[: len(runs)]]
    for path, run in zip(paths, runs, strict=True):
        write_document(run, path)
    return paths


def test_runs_of_one_environment_have_ratios(tmp_path: Path, command: Command) -> None:
    paths = files(tmp_path, document(measured(100)), document(measured(110)))
    (both,) = command.json("compare", *paths)["compared"]
    assert both["ratios"]["latency"] == [None, 1.1]
    assert both["ratios"]["peak"] == [None, 1.0]
    assert both["elsewhere"] == [None, None]
    text = command("compare", *paths)
    assert "110 ms +10.0%" in text
    assert "1: a.json · no commit · 2025-11-20 12:00" in text
    assert command("report", *paths) == text


def test_a_disturbed_time_is_marked_in_the_run_that_it_is_of(
    tmp_path: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    slow = measured(180)
    slow = changed(slow, judgement=changed(slow.judgement, beside=["other processes used 1.6 cores meanwhile"]))
    paths = files(tmp_path, document(measured(100)), document(slow))
    assert command("compare", *paths) == snapshot(name="text")
    assert command("compare", *paths, "--format=markdown") == snapshot(name="markdown")
    file = tmp_path / "page.html"
    command("compare", *paths, "--format=html", f"--output={file}")
    table = file.read_text().partition('id="compared"')[2].partition("</section>")[0]
    (cell,) = re.findall(r"<td[^>]*>(?:(?!</td>).)*\*(?:(?!</td>).)*</td>", table, re.DOTALL)
    assert "180 ms" in cell
    assert "* disturbed while" in table
    calm = files(tmp_path, document(measured(100)), document(measured(110)))
    assert "disturbed while" not in command("compare", *calm)


def test_runs_of_other_machines_are_labelled_and_have_no_ratio_of_times(tmp_path: Path, command: Command) -> None:
    here = measured(100, environment=environment(machine="aaaaaaaa"))
    there = measured(110, environment=environment(machine="bbbbbbbb"))
    newer = measured(120, environment=environment(machine="bbbbbbbb", torch="2.14.0"))
    paths = files(tmp_path, document(here), document(there), document(newer))
    (all_three,) = command.json("compare", *paths)["compared"]
    assert "latency" not in all_three["ratios"]
    assert all_three["ratios"]["peak"] == [None, 1.0, None]  # exact, and the same PyTorch: the code's own
    assert all_three["elsewhere"] == [None, "other machine", "other machine, torch 2.13.0 -> 2.14.0"]
    for form in ("text", "markdown"):
        told = command("compare", *paths, f"--format={form}")
        assert "other machine" in told
        assert "+10.0%" not in told
    page = tmp_path / "page.html"
    command("compare", *paths, "--format=html", f"--output={page}")
    assert page.read_text().count("other machine") >= 2


def test_a_case_is_compared_with_the_first_run_that_has_it(tmp_path: Path, command: Command) -> None:
    other = changed(measured(50), case="t.py::test_new")
    paths = files(tmp_path, document(measured(100)), document(other), document(measured(90), other))
    first, second = command.json("compare", *paths)["compared"]
    assert (first["cases"], first["ratios"]["latency"]) == ([0, None, 0], [None, None, 0.9])
    assert (second["cases"], second["ratios"]["latency"]) == ([None, 0, 1], [None, None, 1.0])


def test_a_run_without_numbers_of_a_case_takes_no_ratio_from_the_later_ones(tmp_path: Path, command: Command) -> None:
    skipped = result(verdict=Verdict.SKIPPED, outcome=None)
    paths = files(tmp_path, document(skipped), document(measured(100)), document(measured(110)))
    (found,) = command.json("compare", *paths)["compared"]
    assert (found["cases"], found["ratios"]["latency"]) == ([0, 0, 0], [None, None, 1.1])
    (found,) = command.json("compare", *paths[:1], *paths[:1])["compared"]
    assert found["ratios"] == {}  # no run has any


def test_predictions_are_compared_only_for_one_pytorch(tmp_path: Path, command: Command) -> None:
    base, same, newer = (prediction(torch=torch) for torch in ("2.13.0", "2.13.0", "2.14.0"))
    paths = files(tmp_path, *(document(predicted_result(one, None)) for one in (base, same, newer)))
    (found,) = command.json("compare", *paths)["compared"]
    assert found["ratios"]["peak"] == [None, 1.0, None]
    assert found["elsewhere"][2] == "torch 2.13.0 -> 2.14.0"


def test_files_of_one_name_are_told_apart(tmp_path: Path, command: Command) -> None:
    paths = [tmp_path / folder / "perf.json" for folder in ("x", "y")]
    for path in paths:
        path.parent.mkdir()
        write_document(document(measured(100)), path)
    assert [run["label"] for run in command.json("compare", *paths)["runs"]] == ["x/perf.json", "y/perf.json"]


def test_options_that_do_not_go_with_what_is_asked_are_refused(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path, document(measured(100)), document(measured(100)))
    asked = ["report a.json b.json --sort=name", "report a.json b.json -v", "report a.json b.json --case=nothing"]
    asked += [
        f"report a.json {option} --format={form}"
        for option in ("--side-by-side=impl", "--columns=min", "--sort=name")
        for form in ("json", "html")
    ]
    asked += ["compare a.json", "report a.json --page=https://x"]
    assert {one: command(*one.split(), status=2) for one in asked} == snapshot


@pytest.mark.parametrize(("kind", "shows_in_full"), [("report", True), ("compare", False)])
def test_only_the_report_of_one_run_is_said_to_show_a_prediction_in_full(
    kind: str, shows_in_full: bool, command: Command
) -> None:
    assert ("a single prediction in full" in " ".join(command(kind, "--help").split())) is shows_in_full


# --- journals ----------------------------------------------------------------------------------------------------


def journal(folder: Path, *results: Result, half: bytes = b"") -> Path:
    path = folder / "2026-11-22T10-00-00-000000-1.jsonl"
    path.write_bytes(b"".join(to_json(one) + b"\n" for one in results) + half)
    return path


def test_a_journal_is_read_though_its_last_line_is_half_written(
    tmp_path: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    first, again = measured(100), measured(120)
    other = changed(measured(50), case="t.py::test_b", failure="wrong")
    path = journal(tmp_path, first, other, again, half=to_json(first)[:77])
    (run,) = command.json("report", path)["runs"]
    assert [case["case"] for case in run["cases"]] == [CASE, "t.py::test_b"]
    assert run["cases"][0]["quantities"]["latency"]["now"] == 120 * MS  # the last result of a case counts
    assert (run["complete"], run["exitstatus"]) == (False, 1)
    assert command("report", path) == snapshot
    whole, notes = read_journal(journal(tmp_path, first))
    assert (len(whole.results), len(notes)) == (1, 1)


def test_a_journal_damaged_elsewhere_is_named_with_the_line(tmp_path: Path) -> None:
    path = journal(tmp_path, measured(100), half=b'{"case": \n')
    with pytest.raises(DocumentError, match=r"\.jsonl is damaged at line 2"):
        read_journal(path)
    path.write_bytes(b'{"case": 3}\n')
    with pytest.raises(DocumentError, match="is not a journal of perflab's runs"):
        read_journal(path)
    with pytest.raises(DocumentError, match="there is no file"):
        read_journal(tmp_path / "none.jsonl")


# --- markdown ----------------------------------------------------------------------------------------------------


def test_markdown_links_to_the_page_and_fits_into_a_comment(tmp_path: Path, command: Command) -> None:
    write_document(large_run(1000), tmp_path / "a.json")
    address = "https://ci.example/page (1).html"
    text = command("report", tmp_path / "a.json", "--format=markdown", f"--page={address}")
    assert "](<https://ci.example/page%20%281%29.html>)" in text or "](<https://ci.example/page%20(1).html>)" in text
    assert len(text) <= LONGEST_COMMENT
    assert text.rstrip().endswith("on the page._")
    assert text.index("**REGRESSED**") < 10_000
    whole = markdown(read_document(tmp_path / "a.json"))
    assert len(whole) > LONGEST_COMMENT
    assert "](<" not in whole


def test_a_hostile_address_is_no_markdown() -> None:
    text = markdown(document(result()), page="javascript:alert(1)>)<script>\n# big")
    assert "<script>" not in text
    assert "\n# big" not in text


def test_a_regression_is_judged_by_no_comparison(tmp_path: Path, command: Command) -> None:
    bad = changed(measured(200), judgement=Judgement(verdict=Verdict.REGRESSED), failure="slow")
    assert main(["compare", *map(str, files(tmp_path, document(measured(100)), document(bad, exitstatus=1)))]) == 0


# --- a gate on two files -----------------------------------------------------------------------------------------


class Gate:
    """Compares runs with ``--fail``; gives the exit status and what is said."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def __call__(self, *runs: Document, option: str = "--fail") -> tuple[int, str]:
        self._capsys.readouterr()
        status = main(["compare", *map(str, files(self._folder, *runs)), option])
        return status, self._capsys.readouterr().err


@pytest.fixture
def gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    return Gate(tmp_path, capsys)


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_only_a_comparison_that_judges_nothing_says_so(tmp_path: Path, command: Command, form: str) -> None:
    runs = files(tmp_path, document(needing()), document(needing()))
    assert "Nothing here is judged." in " ".join(command("compare", *runs, f"--format={form}").split())
    assert "judged" not in command("compare", *runs, f"--format={form}", "--fail")


def needing(*, peak_bytes: int = 2 * GIB, operators: int = 5, ms: float = 100.0, **changes: Any) -> Result:
    counts = {"operators": operators}
    return result(outcome=record(replicate(ms * MS, peak_bytes=peak_bytes, counts=counts, **changes)))


def test_compare_fails_for_what_became_worse_and_for_nothing_else(gate: Gate, snapshot: SnapshotAssertion) -> None:
    before = document(needing())
    ran_out = changed(record(), measurement=None, summary=None, out_of_memory=OutOfMemory(asked_bytes=GIB))
    assert gate(before, document(needing(ms=103))) == (0, "")
    assert gate(before, document(needing(ms=50, operators=4))) == (0, "")
    for worse in (
        [document(needing()), document(needing(ms=112, operators=6))],
        [document(needing(peak_bytes=2 * GIB + 1))],
        [document(result(verdict=Verdict.FAILED, outcome=None))],
        [document(changed(needing(), judgement=Judgement(verdict=Verdict.FAILED, reasons=["each call keeps 8 B"])))],
        [document(result(verdict=Verdict.REGRESSED, outcome=changed(ran_out, environment=environment(machine="a"))))],
    ):
        status, said = gate(before, *worse)
        assert status == 1
        assert said == snapshot


def test_a_time_that_the_machine_may_have_made_longer_is_not_decided(gate: Gate, snapshot: SnapshotAssertion) -> None:
    """The fastest calls are as fast as before: one process cannot tell that from a busy machine."""
    status, said = gate(document(needing()), document(needing(ms=112, fastest_ns=99 * MS)))
    assert status == 0
    assert said == snapshot


def test_a_time_that_was_cut_short_is_not_compared_unless_it_was_measured_again(gate: Gate) -> None:
    def cut_short(ms: float, fresh: Sequence[Replicate] = ()) -> Document:
        taken = record(replicate(ms * MS, peak_bytes=GIB, counts={"operators": 5}), fresh=list(fresh))
        return document(result(outcome=changed(taken, measurement=measurement(cut_short=True))))

    here, before = cut_short(100), document(needing(peak_bytes=GIB))
    for runs in ((here, before), (before, here), (here, cut_short(300))):
        status, said = gate(*runs)
        assert (status, said.count("\n")) == (0, 1)
        assert "not compared" in said
        assert "--perf-check=exact cut the measuring of its time short" in said
        assert gate(*runs, option="--fail=latency:5%")[0] == 2, "nothing was compared"
    times = record(replicate(100 * MS), fresh=[])
    alone = document(result(outcome=changed(times, measurement=measurement(cut_short=True))))
    assert "exact cut the measuring" in gate(alone, alone)[1]
    again = [cut_short(100, [replicate(ms * MS, peak_bytes=GIB)] * 3) for ms in (100, 130)]
    status, said = gate(*again)
    assert status == 1
    assert "latency 100 ms -> 130 ms" in said


def test_limits_gate_the_quantities_that_they_name_alone(gate: Gate, snapshot: SnapshotAssertion) -> None:
    before = document(needing())
    worse = document(needing(ms=112, operators=6, peak_bytes=2 * GIB + 2**20))
    for limits, status in (("latency:20%", 0), ("latency:10%", 1), ("peak:1%", 0), ("peak:0", 1), ("operators:25%", 0)):
        assert gate(before, worse, option=f"--fail={limits}")[0] == status
    status, said = gate(before, worse, option="--fail=peak:1%,operators:10%")
    assert (status, said.count("\n"), "operators 5 -> 6" in said) == (1, 1, True)
    refused = [
        gate(before, worse, option=f"--fail={limits}")
        for limits in ("speed:1%", "latency", "latency:5", "peak:0,peak:1%")
    ]
    assert {status for status, _ in refused} == {2}
    assert [said for _, said in refused] == snapshot


def test_a_gate_that_could_compare_nothing_does_not_pass(gate: Gate, snapshot: SnapshotAssertion) -> None:
    there = environment(machine="bbbbbbbb")
    here = document(result(outcome=record(replicate(counts={"operators": 5}), environment=environment(machine="a"))))
    elsewhere = document(result(outcome=record(replicate(counts={"operators": 6}), environment=there)))
    assert [
        gate(here, elsewhere),
        gate(here, elsewhere, option="--fail=latency:5%"),
        gate(here, document(result("test_other.py::test_a"))),
    ] == snapshot


def test_predictions_and_kernels_of_two_runs_are_judged_by_their_own_tiers(
    gate: Gate, snapshot: SnapshotAssertion
) -> None:
    usual, more = document(predicted_result(prediction())), document(predicted_result(grown()))
    assert gate(usual, usual) == (0, "")
    fine, spilling = (
        document(result("kernels:EXAMPLES::attend[sm_90]", outcome=CompiledCase(now=kernel(resources(**changes)))))
        for changes in ({}, {"spill_store_bytes": 8})
    )
    assert gate(fine, fine) == (0, "")
    assert [gate(usual, more), gate(fine, spilling)] == snapshot
