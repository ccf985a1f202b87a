"""What ``perflab history`` reads: folders, a branch, journals, baselines; each run once, as other readers take it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perflab.base.data import changed, to_json
from perflab.base.errors import DocumentError, UsageError
from perflab.base.git import ask_git
from perflab.cli import main
from perflab.history.baseline_log import levels_in, read_log
from perflab.history.contents import Contents
from perflab.history.results_files import read_branch, read_folder, read_into
from perflab.history.series import History, Run
from perflab.history.telling import contents_of
from perflab.history.text import as_text
from perflab.measured.baselines import Baselines
from perflab.results.documents import write_document
from perflab.results.measurement import Measurement, Paired
from perflab.results.readings import Place, Reading
from perflab.results.records import Change, Judgement, Policy, Uncompared, Verdict
from perflab.results.result import Document, Result
from perflab.store.times import BaselineStore
from tests.harness.command import Command
from tests.harness.histories import case_name, contents_in, git, write_runs
from tests.harness.make import (
    CASE,
    MS,
    compared,
    document,
    entry,
    environment,
    measurement,
    predicted_result,
    prediction,
    quiet,
    record,
    replicate,
    result,
    successor,
)


def night(number: int, ms: float = 100.0, **changes: Any) -> Document:
    measured = record(replicate(ms * MS, peak_bytes=1024, counts={"operators": 5}, calibration_ns={"memory": 9.0}))
    created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    return document(result(outcome=measured), created=created, commit=f"{number:040x}", **changes)


def test_results_files_are_read_wherever_they_lie_in_the_order_of_their_runs(tmp_path: Path) -> None:
    for number, place in ((3, "a.json"), (1, "deep/er/b.json"), (2, "c.json")):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        write_document(night(number, ms=100.0 + number), tmp_path / place)
    contents = contents_in(tmp_path)
    assert [run.commit for run in contents.runs] == [f"{number:040x}" for number in (1, 2, 3)]
    by_name = {row.quantity: row for row in contents.series}
    assert by_name["latency"].values == [101.0 * MS, 102.0 * MS, 103.0 * MS]
    assert by_name["peak"].values == [1024.0] * 3
    assert by_name["operators"].values == [5.0] * 3
    assert set(by_name) == {"latency", "peak", "operators"}, (
        "the machine's readings are no case's, by-products are asked"
    )
    assert {row.quantity for row in contents_in(tmp_path, "fastest").series} == {*by_name, "fastest"}


def test_a_report_as_json_and_the_results_it_was_made_of_are_the_same_history(tmp_path: Path) -> None:
    judged = Judgement(verdict=Verdict.OK, latency=Change(before=90.0 * MS, now=100.0 * MS, ratio=100 / 90))
    measured = record(replicate(phases_ns={"forward": 30.0 * MS}, peak_bytes=2048, counts={"operators": 7}))
    cases = document(
        result("t.py::test_a", outcome=measured, judgement=judged),
        result(
            "t.py::test_b", outcome=record(fresh=[replicate(80.0 * MS), replicate(82.0 * MS), replicate(90.0 * MS)])
        ),
        predicted_result(),
        *(predicted_result(prediction(world_size=8, rank=rank), case="t.py::test_sum") for rank in (0, 7)),
    )
    write_document(cases, tmp_path / "plain/run.json")
    plain = contents_in(tmp_path / "plain", "fastest")
    report = tmp_path / "report/run.json"
    report.parent.mkdir()
    assert main(["report", str(tmp_path / "plain/run.json"), "--format=json", f"--output={report}"]) == 0
    reported = contents_in(report.parent, "fastest")

    def known(contents: Contents) -> dict[tuple[str, ...], tuple[float, str, bool]]:
        return {
            (row.case, row.variant, row.quantity, contents.environments[row.environment]): (
                row.values[0],
                row.unit,
                row.exact,
            )
            for row in contents.series
        }

    both = known(plain)
    assert len(both) > 8
    assert {place for case, _, _, place in both if case == "t.py::test_sum"} >= {
        f"GPU h100, rank {rank} of 8, torch 2.13.0" for rank in (0, 7)
    }
    assert {
        key: value for key, value in known(reported).items() if key[2] not in ("bound", "roofline", "estimate")
    } == both


def test_times_that_were_cut_short_are_left_out_and_their_runs_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = replicate(100.0 * MS, phases_ns={"forward": 30.0 * MS}, peak_bytes=9, calibration_ns={"memory": 9.0})
    again = [replicate(80.0 * MS, peak_bytes=9, calibration_ns={"memory": 8.0})]
    for number, (cut_short, fresh) in enumerate([(False, []), (True, []), (True, again), (True, [])]):
        taken = changed(record(times, fresh=fresh), measurement=measurement(cut_short=cut_short))
        created = datetime(2026, 1, 1 + number, tzinfo=UTC)
        file = tmp_path / f"{number}.json"
        write_document(document(result(outcome=taken), created=created), file)
        if number == 3:
            assert main(["report", str(file), "--format=json", f"--output={file}"]) == 0
    contents = contents_in(tmp_path)
    points = {row.quantity: (list(row.runs), row.values) for row in contents.series}
    assert points["latency"] == ([0, 2], [100.0 * MS, 80.0 * MS])
    assert points["forward"] == ([0], [30.0 * MS])
    assert points["peak"][0] == [0, 1, 2, 3]
    capsys.readouterr()
    assert main(["history", str(tmp_path)]) == 0
    assert "; times of 2 runs left out, which --perf-check=exact cut short" in capsys.readouterr().out


def test_a_journal_is_a_run_too_of_each_case_its_last_line_counts_and_a_half_written_one_is_no_damage(
    tmp_path: Path,
) -> None:
    first, last = (to_json(result(outcome=record(replicate(ms * MS)))) + b"\n" for ms in (7.0, 8.0))
    for day, lines in ((1, first), (2, first + last[:50]), (3, first + last)):
        (tmp_path / f"2026-01-0{day}T03-00-00-000000-{day}.jsonl").write_bytes(lines)
    contents = contents_in(tmp_path)
    assert [run.created[:10] for run in contents.runs] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert [row.values for row in contents.series if row.quantity == "latency"] == [[7.0 * MS, 7.0 * MS, 8.0 * MS]]


def test_of_a_case_that_was_also_compared_with_a_commit_the_run_has_one_reading(tmp_path: Path) -> None:
    held = record(replicate(7.0 * MS))
    in_turns = compared(record(replicate(9.0 * MS)))
    both = [result(outcome=in_turns), result(outcome=held)]
    created = datetime(2026, 1, 1, tzinfo=UTC)
    write_document(document(*both, created=created), tmp_path / "merged.json")
    later = b"".join(to_json(one) + b"\n" for one in reversed(both))
    (tmp_path / "2026-01-02T03-00-00-000000-1.jsonl").write_bytes(later)
    write_document(document(result(outcome=in_turns), created=created + timedelta(days=2)), tmp_path / "alone.json")
    (row,) = (row for row in contents_in(tmp_path).series if row.quantity == "latency")
    assert row.values == [7.0 * MS, 7.0 * MS, 9.0 * MS]


def test_a_run_counts_once_whatever_files_it_stands_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        first, other = (result(f"t.py::test_{name}", outcome=record(replicate(100.0 * MS))) for name in "ab")
        created = datetime(2026, 1, number, tzinfo=UTC)
        one = document(first, other, created=created)  # equal numbers of two nights are two runs
        write_document(one, tmp_path / f"{number}.json")
        (tmp_path / "copies").mkdir(exist_ok=True)
        if number == 2:
            write_document(one, tmp_path / "copies/the-same.json")
        report = tmp_path / f"copies/report-{number}.json"
        assert main(["report", str(tmp_path / f"{number}.json"), "--format=json", f"--output={report}"]) == 0
        begun = one.created - timedelta(minutes=5)
        (tmp_path / f"{begun:%Y-%m-%dT%H-%M-%S-%f}-1.jsonl").write_bytes(to_json(first) + b"\n")
    capsys.readouterr()
    contents = contents_in(tmp_path)
    assert [run.file.rpartition("/")[2] for run in contents.runs] == ["1.json", "2.json"], "the richest"
    assert contents.repeated == 5
    assert [row.values for row in contents.series if row.quantity == "latency"] == [[100.0 * MS] * 2] * 2
    assert "; 5 repeats of a run left out\n" in as_text(contents, 100)


def test_runs_of_one_moment_that_differ_are_two(tmp_path: Path) -> None:
    for name, ms in (("a", 100.0), ("b", 101.0)):
        write_document(night(1, ms=ms), tmp_path / f"{name}.json")
    assert (len(contents_in(tmp_path).runs), contents_in(tmp_path).repeated) == (2, 0)


def test_of_many_files_the_damaged_ones_are_named_and_left_out(tmp_path: Path, command: Command) -> None:
    write_runs(tmp_path, 100, {case_name(1): lambda run: {"peak": 4096}})
    (tmp_path / "run-050.json").write_bytes((tmp_path / "run-050.json").read_bytes()[:-40])
    (tmp_path / "run-060.json").write_text('{"schema": 1, "benchmarks": []}')
    (tmp_path / "run-070.json").write_bytes(b"\x00\xff\x00")
    (tmp_path / "run-080.json").write_text('{"kind": "perflab report", "schema": 99, "runs": []}')
    shown = command("history", tmp_path)
    assert f"{tmp_path}: 96 runs, 2026-01-01 to " in shown
    left_out = [line for line in shown.splitlines() if line.startswith("left out: ")]
    assert [re.findall(r"run-(\d+)", line) for line in left_out] == [["050"], ["060"], ["070"], ["080"]]
    assert "newer perflab" in left_out[3]


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("deep.json", b'{"schema": 1, "x": ' + b"[" * 200_000, "it is damaged"),
        ("text.json", b'{"schema": 1, "kind": "\xff"}', "it is damaged"),
        ("empty.json", b"", "it is damaged"),
        ("2026-99-03T10-00-00-000000-1.jsonl", b"", "its name is not a date"),
        ("2026-01-03T10-00-00-000000-1.jsonl", b"[" * 200_000 + b"\n", "line 1 is damaged"),
        ("2026-01-03T10-00-00-000000-1.jsonl", b'{"case": "\xff"}\n', "line 1 is damaged"),
    ],
)
def test_whatever_is_wrong_with_one_file_the_others_are_read(
    tmp_path: Path, command: Command, name: str, raw: bytes, said: str
) -> None:
    write_runs(tmp_path, 3, {case_name(1): lambda run: {"peak": 4096}})
    (tmp_path / name).write_bytes(raw)
    shown = command("history", tmp_path)
    assert ": 3 runs, " in shown
    assert f"left out: {tmp_path / name}: {said}" in shown


@pytest.mark.parametrize("raw", [b'{"schema": 1, "cases": ' + b"[" * 200_000, b'{"schema": 1, "gpu": "\xff"}', b"{"])
def test_a_damaged_baseline_file_is_told_and_no_traceback(raw: bytes) -> None:
    with pytest.raises(DocumentError, match="it is not a baseline file"):
        levels_in(raw, "cpu-a")


def test_times_of_each_environment_in_a_file_are_a_series_of_their_own(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    for threads in (1, 2):
        (path,) = store.save({CASE: entry(quiet(threads * MS), environment=environment(threads=threads))})
    one, two = levels_in(path.read_bytes(), path.parent.name)[1]
    assert [level.readings["latency"].value for level in (one, two)] == [1 * MS, 2 * MS]
    assert one.places[0].text != two.places[0].text


def test_of_a_report_with_one_damaged_run_nothing_is_added(tmp_path: Path) -> None:
    write_runs(tmp_path, 2, {case_name(1): lambda run: {"peak": 4096}})
    first, second = (msgspec.json.decode((tmp_path / f"run-00{at}.json").read_bytes()) for at in (0, 1))
    second["runs"][0]["cases"][0]["environment"] = 7
    history = History("a report")
    with pytest.raises(DocumentError, match="names an environment that is not there"):
        read_into(history, msgspec.json.encode(first | {"runs": first["runs"] + second["runs"]}), "both.json")
    assert (history.runs, history.series) == ([], [])


def test_a_folder_without_results_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a folder\n  -> name a folder with what --perf-json"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UsageError, match=r"holds no results: .*broken\.json: it is damaged"):
        read_folder(tmp_path)


def test_a_branch_is_read_without_a_checkout(tmp_path: Path) -> None:
    write_runs(tmp_path / "nights", 5, {case_name(1): lambda run: {"peak": 4096 + run}})
    git(tmp_path, "init", "--quiet", "--initial-branch=perf-results")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=nights")
    git(tmp_path, "switch", "--quiet", "--orphan", "main")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=code")
    assert not (tmp_path / "nights").exists()
    history = read_branch(tmp_path, "perf-results", "nights")
    history.finish()
    assert [list(one.values) for one in history.series] == [[4096.0, 4097.0, 4098.0, 4099.0, 4100.0]]
    assert history.runs[0].file == "perf-results:run-000.json"
    with pytest.raises(
        UsageError, match="--branch=perf-results has no folder nigths\n  -> name one of its folders: nights"
    ):
        read_branch(tmp_path, "perf-results", "nigths")


def test_what_was_accepted_comes_from_the_log_with_commit_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    policy, here = Policy(), environment(machine="0123abcd")
    stored, case = None, "tests/test_model.py::test_step"
    for number, (ms, peak_bytes, reason) in enumerate(
        ((100.0, 1024, None), (100.0, 1024, None), (80.0, 2048, "a cache, which pays"))
    ):
        three = [replicate(ms * MS, peak_bytes=peak_bytes, counts={"operators": 5}) for _ in range(3)]
        new = entry(three, environment=here, recorded=f"2026-01-0{number + 1}T03:00:00Z")
        if number != 1:  # the second commit changes code alone
            stored = successor(stored, new, policy, reason)
            assert stored.times is not None
            assert stored.exact is not None
            times, exact = stored.times, stored.exact
            Baselines(tmp_path / "baselines", tmp_path / "own").save(
                {case: new}, {case: new}, lambda *_, exact=exact: exact, lambda *_, times=times: times
            )
        (tmp_path / "code.py").write_text(str(number))
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", f"--message=commit {number}")
    monkeypatch.chdir(tmp_path)
    found = msgspec.json.decode(command("history", "--git", "--format=json"), type=Contents)
    assert found.accepted
    assert [run.file for run in found.runs] == ["commit 0", "commit 2"]
    values = {row.quantity: row.values for row in found.series}
    assert values == {"latency": [100.0 * MS, 80.0 * MS], "peak": [1024.0, 2048.0], "operators": [5.0, 5.0]}
    assert {row.case for row in found.series} == {"tests/test_model.py::test_step"}
    reasons = {row.quantity: [found.words[word] for word in row.words] for row in found.series}
    assert reasons["peak"] == ["accepted", "accepted: a cache, which pays"]
    assert {event.kind for event in found.events} == {"accepted"}
    assert {(event.worse, event.good, event.commits_total) for event in found.events} == {
        (True, git(tmp_path, "rev-parse", "HEAD~2"), 2),
        (False, git(tmp_path, "rev-parse", "HEAD~2"), 2),
    }
    shown = command("history", "--git")
    assert "accepted, needs more: 1.00 KiB -> 2.00 KiB (+1.00 KiB), peak of step" in shown
    assert "accepted, faster: -20.0%, latency of step" in shown
    assert "reason: a cache, which pays" in shown
    assert "commit 1" in shown, "what lies between"
    head = git(tmp_path, "rev-parse", "--short=7", "HEAD")
    first = git(tmp_path, "rev-parse", "--short=7", "HEAD~2")
    assert f"accepted in {head} commit 2; the last one in {first}, 2 commits before" in " ".join(shown.split())


def accepted(*levels_ms: float) -> History:
    """A log of baselines: a commit a level, all of them in one second, as a rebase leaves them."""
    history = History("the log of baselines/")
    history.are_accepted = True
    place = history.place(Place(("here",), "here", is_exact=False))
    for number, ms in enumerate(levels_ms):
        run = history.begin(Run(datetime(2026, 1, 1, tzinfo=UTC), f"{number:040x}", f"save {100 - number}"))
        readings = {"latency": Reading(ms * MS, "ns", is_exact=False)}
        history.add(run, "t.py::test_a", "", (place, place), "accepted", readings)
    history.finish()
    return history


def test_accepted_levels_keep_the_order_of_their_commits(tmp_path: Path) -> None:
    contents = contents_of(accepted(1.0, 3.0, 2.0), tmp_path)
    assert contents.series[0].values == [1.0 * MS, 3.0 * MS, 2.0 * MS]
    assert [run.file for run in contents.runs] == ["save 100", "save 99", "save 98"]


def test_small_accepted_steps_add_up_and_all_numbers_of_them_agree(tmp_path: Path) -> None:
    contents = contents_of(accepted(1.00, 1.04, 1.08, 1.09, 1.12, 1.13, 1.40), tmp_path)
    (row,) = contents.series
    assert [(event.members[0].at, round(event.ratio or 0.0, 4)) for event in contents.events] == [
        (2, 1.08),
        (6, round(1.40 / 1.08, 4)),
    ]
    assert [level.value for level in row.levels] == [1.00 * MS, 1.08 * MS, 1.40 * MS]
    assert row.ratio == pytest.approx(1.40)
    assert row.difference == pytest.approx(0.40 * MS)
    assert row.judged
    text = as_text(contents, 100)
    assert "accepted, slower: +29.6%, latency of a" in text
    assert re.search(r"latency .* \+40\.0%  1, 2\n", text)
    creeping = contents_of(accepted(*(1.045**number for number in range(10))), tmp_path)
    assert (creeping.series[0].ratio or 0.0) > 1.4, "ten saves of 4.5 % are no standstill"


def test_every_version_of_this_projects_own_baselines_is_read() -> None:
    root = Path(__file__).parents[2]
    if ask_git(root, "rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("this clone has no history: git fetch --unshallow")
    history = read_log(root / "baselines")
    # The first three saves of kernels were a schema that no release has written, and that is not read any more.
    assert [one.file.split(":")[1] for one in history.left_out] == [
        "baselines/triton-3.9.0/tests.perf.kernels.examples.json"
    ] * 3
    assert len(history.runs) >= 12
    known = {one.quantity for one in history.series}
    assert known >= {"latency", "peak", "operators", "saved", "flops", "registers", "waits"}, "of every tier"


# --- whatever reads results takes the same from them: damage, what a time is of, which counts are exact ---------------

NIGHTS = 12


def write_nights(folder: Path, night: Callable[[int], Result]) -> list[Path]:
    """A results file a day."""
    folder.mkdir()
    paths = [folder / f"{number:02}.json" for number in range(NIGHTS)]
    for number, path in enumerate(paths):
        created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
        write_document(document(night(number), created=created, commit=f"{number:040x}"), path)
    return paths


def with_peak(peak: int) -> Result:
    memory = Change(before=1024, now=peak, ratio=peak / 1024)
    measured = record(replicate(100.0 * MS, peak_bytes=peak), measurement=samples())
    return result(outcome=measured, judgement=Judgement(verdict=Verdict.OK, memory=memory))


def samples() -> Measurement:
    return measurement([100 * MS], memory=replicate().memory)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\n}\n", b',\n "results": []\n}\n'),
        (b'"peak_bytes": 2048', b'"peak_bytes": 2048, "peak_bytes": 1024'),
        (b'"peak_bytes": 2048', b'"peak_bytes": -2048'),
        (b'"peak_bytes": 2048', b'"peak_bytes": 99999999999999999999'),
        (b'"now": 2048', b'"now": -2048'),
        (b'"now": 2048', b'"now": 1e200'),
    ],
)
def test_a_file_that_the_report_refuses_is_left_out_of_the_history_and_passes_no_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: bytes, new: bytes
) -> None:
    paths = write_nights(tmp_path / "nights", lambda night: with_peak(1024 if night < 9 else 2048))
    asked = ["history", str(tmp_path / "nights"), "--fail"]
    assert main(asked) == 1
    for path in paths[9:]:
        assert old in path.read_bytes()
        path.write_bytes(new.join(path.read_bytes().rsplit(old, 1)))
    for command in (["report"], ["merge", f"--output={tmp_path / 'out.json'}"], ["compare", str(paths[0])]):
        assert main([*command, str(paths[-1])]) == 2, command
    capsys.readouterr()
    assert main(asked) == 1
    shown = capsys.readouterr()
    assert shown.out.count("\nleft out: ") == 3
    assert f"3 results files could not be read: {paths[9]}\n  -> restore or remove it\n" in shown.err
    paths[0].with_name("other.json").write_text('{"kind": "coverage", "schema": 1}')
    paths[0].with_name("scan.json").write_text('{"version": "2.1.0", "results": [{"level": "note"}]}')
    for path in paths[9:]:
        path.unlink()
    assert main(asked) == 0, "what no run wrote is named, and fails nobody"


def test_a_predicted_size_below_nothing_is_damage_for_all_readers(tmp_path: Path) -> None:
    (tmp_path / "nights").mkdir()
    path = tmp_path / "nights/a.json"
    write_document(document(predicted_result()), path)
    assert main(["report", str(path)]) == main(["history", str(tmp_path / "nights")]) == 0
    path.write_bytes(path.read_bytes().replace(b'"peak_bytes": ', b'"peak_bytes": -'))
    assert main(["report", str(path)]) == main(["history", str(tmp_path / "nights")]) == 2


def in_turns(tier: str) -> Callable[[int], Result]:
    """From the sixth night on a case is also, or only, measured in turns, of which a verdict takes the fastest."""

    def night(number: int) -> Result:
        took_turns = number >= 6
        held = record(replicate(100.0 * MS), measurement=samples())
        paired = Paired(against="main", base_ns=92.0 * MS)
        judged = Change(before=92.0 * MS, now=92.0 * MS, ratio=1.0)
        if took_turns:
            held = compared(held, paired=paired) if tier == "compared" else changed(held, paired=paired)
        return result(outcome=held, judgement=Judgement(verdict=Verdict.OK, latency=judged if took_turns else None))

    return night


@pytest.mark.parametrize("tier", ["compared", "measured"])
def test_a_time_is_of_all_samples_whether_or_not_the_case_took_turns(tmp_path: Path, tier: str) -> None:
    paths = write_nights(tmp_path / "nights", in_turns(tier))
    (tmp_path / "reports").mkdir()
    for path in paths:
        assert main(["report", str(path), "--format=json", f"--output={tmp_path / 'reports' / path.name}"]) == 0
    for folder in ("nights", "reports"):
        contents = contents_in(tmp_path / folder)
        assert [row.values for row in contents.series if row.quantity == "latency"] == [[100.0 * MS] * NIGHTS]
        assert contents.events == []


def varying(**judged: Any) -> Callable[[int], Result]:
    """A count that differs in each night, without a change of the code; another one is exact."""

    def night(number: int) -> Result:
        counts = {"operators": 5, "allocations": (7, 5, 8, 0)[number % 4]}
        judgement = Judgement(verdict=Verdict.OK, **judged)
        return result(outcome=record(replicate(100.0 * MS, counts=counts), measurement=samples()), judgement=judgement)

    return night


def disagreeing(number: int) -> Result:
    fresh = [replicate(100.0 * MS, counts={"operators": 5, "allocations": 5 + number % 2 + at}) for at in range(3)]
    return result(outcome=record(fresh=fresh, measurement=samples()))


@pytest.mark.parametrize(
    "night",
    [
        varying(
            counts={"operators": Change(before=5, now=5, ratio=1.0, limit=1.0)},
            not_compared=[Uncompared("allocations", "different from process to process there (5 to 8)")],
        ),
        disagreeing,
    ],
)
def test_a_count_that_the_gate_leaves_out_since_it_varies_is_no_alarm(
    tmp_path: Path, night: Callable[[int], Result]
) -> None:
    paths = write_nights(tmp_path / "nights", night)
    contents = contents_in(tmp_path / "nights")
    assert contents.events == []
    assert {row.quantity: row.exact for row in contents.series if row.unit == "count"} == {
        "operators": True,
        "allocations": False,
    }
    assert main(["history", str(tmp_path / "nights"), "--fail"]) == 0
    paths[-1].write_bytes(paths[-1].read_bytes().replace(b'"operators": 5', b'"operators": 6'))
    assert main(["history", str(tmp_path / "nights"), "--fail"]) == 1, "what is exact is an alarm at once"
