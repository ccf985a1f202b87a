"""A history of many cases beside noise: one cause is one alarm, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from tests.harness.histories import Values, contents_in, noisy, step, write_runs

RUNS, CASES = 60, 400
MIDDLE = RUNS // 2
NOISE = 0.02


def case_name(number: int) -> str:
    return f"tests/perf/test_module_{number // 100}.py::test_case[{number % 100}-fp32]"


def case(number: int) -> Values:
    """Every hundredth becomes 8 % slower in the middle run, which has one operator more."""
    slowed, before = number % 100 == 0, 1e6 * (1 + number % 50)
    times = noisy(step(MIDDLE, before, before * (1.08 if slowed else 1.0)), number, NOISE)
    fixed = noisy(lambda run: 20_000, CASES + number, NOISE)
    return lambda run: {
        "latency": times[run],
        "fastest": 0.97 * times[run],
        "peak": 1024 * (1000 + number),
        "operators": 100 + (slowed and run >= MIDDLE),
        "calibration interpreter": fixed[run],
    }


def test_what_slowed_four_cases_of_four_hundred_is_one_alarm_at_its_commit(tmp_path: Path) -> None:
    write_runs(tmp_path, RUNS, {case_name(number): case(number) for number in range(CASES)})
    (tmp_path / "run-007.json").write_bytes((tmp_path / "run-007.json").read_bytes()[:5_000])
    contents = contents_in(tmp_path)
    assert len(contents.runs) == RUNS - 1, "a damaged file costs its own run alone"
    (event,) = [event for event in contents.events if event.kind == "alarm"]
    assert (event.good, event.bad) == (f"{MIDDLE:040x}", f"{MIDDLE + 1:040x}")
    named = {contents.series[one.series].case for one in event.members if contents.series[one.series].exact}
    assert named == {case_name(number) for number in range(0, CASES, 100)}
    assert event.smallest is not None
    assert event.largest is not None
    assert 1.0 < event.smallest < 1.08 < event.largest < 1.2
