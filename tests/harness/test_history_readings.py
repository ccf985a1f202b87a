"""Whatever reads results takes the same from them: what is damaged, what a time is of, and which counts are exact."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perflab.base.data import changed
from perflab.cli import main
from perflab.results.documents import write_document
from perflab.results.measurement import Measurement, Paired
from perflab.results.records import Change, Judgement, Uncompared, Verdict
from perflab.results.result import Result
from tests.harness.histories import contents_in
from tests.harness.make import MS, compared, document, measurement, predicted_result, record, replicate, result

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
