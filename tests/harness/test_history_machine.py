"""A machine that changed beside its cases: what it explains of a slowdown, and what it does not."""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import pytest

from perflab.cli import main
from perflab.history.change_points import Change as Shift
from perflab.history.judging import Found, without_the_machine
from perflab.history.series import Series
from perflab.history.text import as_text
from tests.harness.command import Command
from tests.harness.histories import beside_fixed_work, case_name, contents_in, everywhere, write_runs


def test_a_step_of_the_calibration_workload_at_the_same_place_is_the_machines(tmp_path: Path) -> None:
    for name, machine in (("machine", 1.2), ("code", 1.0)):
        cases = {case_name(number): beside_fixed_work(number, 1.2, **everywhere(machine)) for number in range(3)}
        write_runs(tmp_path / name, 40, cases)
    (event,) = contents_in(tmp_path / "machine").events
    assert event.kind == "machine"
    assert event.machine_ratio == pytest.approx(1.2, rel=0.02)
    text = as_text(contents_in(tmp_path / "machine"), 100)
    assert "caused by the machine: the calibration workload changed by +" in text
    (event,) = contents_in(tmp_path / "code").events
    assert (event.kind, event.machine_ratio) == ("alarm", None)


@pytest.mark.parametrize(("case", "machine"), [(1.1, 1.05), (1.05 * 1.05, 1.05), (1.3, 1.05), (0.9, 0.95)])
def test_what_the_machine_leaves_of_a_change_is_an_alarm_and_both_are_told(
    tmp_path: Path, command: Command, case: float, machine: float
) -> None:
    """Half of a slowdown is the machine's: the other half is the code's, which nobody is to overlook."""
    write_runs(tmp_path, 40, {case_name(1): beside_fixed_work(1, case, **everywhere(machine))})
    (event,) = contents_in(tmp_path).events
    assert event.kind == "alarm"
    assert event.machine_ratio == pytest.approx(machine, abs=0.01)
    assert event.rest_ratio == pytest.approx(case / machine, rel=0.03)
    assert event.members[0].rest_low < case / machine < event.members[0].rest_high
    text = " ".join(command("history", tmp_path, "--fail", "--recent=25", status=int(case > 1)).split())
    assert re.search(
        r"the machine changed too: the calibration workload by [+-]\d\.\d%; "
        r"without that, [+-]\d+\.\d% \([+-]\d+\.\d%…[+-]\d+\.\d%\) remains",
        text,
    )


def test_a_slower_machine_is_no_alarm_of_the_code_whenever_it_is_seen(tmp_path: Path) -> None:
    for runs in (22, 23, 24, 26):  # two runs on the slower machine, three, and so on
        for seed in range(4):
            folder = tmp_path / f"{runs}-{seed}"
            write_runs(folder, runs, {case_name(1): beside_fixed_work(seed, 1.1, **everywhere(1.1))})
            assert main(["history", str(folder), "--fail"]) == 0
            assert [one.kind for one in contents_in(folder).events] in ([], ["machine"])
            write_runs(folder, runs, {case_name(1): beside_fixed_work(seed, 1.32, **everywhere(1.1))})
            if runs > 22:
                (event,) = contents_in(folder).events
                assert event.rest_ratio == pytest.approx(1.2, rel=0.03)


def test_one_workload_of_three_does_not_speak_for_the_machine(tmp_path: Path) -> None:
    write_runs(tmp_path, 40, {case_name(1): beside_fixed_work(1, 1.1, memory=1.1)})
    (event,) = contents_in(tmp_path).events
    assert (event.kind, event.machine_ratio) == ("alarm", None)


def test_of_many_cases_on_a_slower_machine_the_one_that_got_slower_itself_is_the_alarm(tmp_path: Path) -> None:
    cases = {case_name(at): beside_fixed_work(at, 1.05, **everywhere(1.05)) for at in range(12)}
    cases[case_name(12)] = beside_fixed_work(12, 1.2, **everywhere(1.05))
    write_runs(tmp_path, 40, cases)
    contents = contents_in(tmp_path)
    kinds = {event.kind: [contents.series[one.series].name for one in event.members] for event in contents.events}
    assert kinds["alarm"] == ["step[12]"]
    assert len(kinds["machine"]) >= 10, "noise may hide a step of 5 % from one or the other"


def test_only_an_alarm_of_the_machines_own_series_explains_a_change() -> None:
    def named(quantity: str) -> Series:
        return Series("", "", quantity, 0, "ns", False, array("i", range(40)), array("d", [1.0] * 40))

    shift = Shift(19, 20, 20, 1.1, 1.09, 1.11, 1e-9)
    change = Found(0, shift, is_alarm=True)
    for is_alarm in (True, False):
        moved = [Found(0, shift, is_alarm)]
        (left,) = without_the_machine([change], [named("latency")], [named("memory")], moved)
        assert left.is_machines is is_alarm


def test_what_needs_more_memory_on_a_slower_machine_is_an_alarm_beside_the_machines(tmp_path: Path) -> None:
    times = beside_fixed_work(1, 1.2, **everywhere(1.2))
    write_runs(tmp_path, 40, {case_name(1): lambda run: {**times(run), "peak": 4096 + 512 * (run >= 20)}})
    contents = contents_in(tmp_path)
    assert {
        event.kind: [contents.series[one.series].quantity for one in event.members] for event in contents.events
    } == {"machine": ["latency"], "alarm": ["peak"]}
