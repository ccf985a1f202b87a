"""A history of many cases, as ``large_history`` writes it: one cause is one alarm, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from perflab.history.command import read_history
from perflab.history.telling import contents_of
from tests.harness.large_history import write

RUNS, CASES = 60, 400


def test_what_slowed_four_cases_of_four_hundred_is_one_alarm_at_its_commit(tmp_path: Path) -> None:
    write(tmp_path, RUNS, CASES)
    (tmp_path / "run-0007.json").write_bytes((tmp_path / "run-0007.json").read_bytes()[:5_000])
    history = read_history(str(tmp_path), None, git=False, quantity=None)
    history.finish()
    contents = contents_of(history, tmp_path)
    assert len(contents.runs) == RUNS - 1, "a damaged file costs its own run alone"
    (event,) = [event for event in contents.events if event.kind == "alarm"]
    assert (event.good, event.bad) == (f"{RUNS // 2 - 1:040x}", f"{RUNS // 2:040x}")
    named = {contents.series[one.series].case for one in event.members if contents.series[one.series].exact}
    assert named == {f"tests/perf/test_module_{number}.py::test_case[0-fp32]" for number in range(CASES // 100)}
    assert event.smallest is not None
    assert event.largest is not None
    assert 1.0 < event.smallest < 1.08 < event.largest < 1.2
