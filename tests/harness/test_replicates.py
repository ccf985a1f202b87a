"""Replicates from fresh processes: what is left of a damaged report, and what further ones may take."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perflab.child import Ended
from perflab.data import to_json
from perflab.errors import FreshProcessError
from perflab.measure.records import Measurement
from perflab.measured.run import replicates
from perflab.measured.run.replicates import Replicates
from perflab.plugin.case import fresh_process
from perflab.plugin.case.fresh_process import Job, JobResult, measure_fresh
from perflab.plugin.case.total_budget import TotalBudget
from tests.harness.make import MS, record, replicate, result

MEASURED = Measurement(samples_ns=[100 * MS] * 10, repetitions=1, warmup_calls=3, settled=True, clock="host")


def told(monkeypatch: pytest.MonkeyPatch, written: bytes) -> dict[str, JobResult]:
    """What is read of a child that has written this."""

    def run_job(_config: object, job: Job, _device: str, _folder: Path, **_limits: float) -> Ended:
        assert job.results is not None
        Path(job.results).write_bytes(written)
        return Ended(-9, "killed")

    monkeypatch.setattr(fresh_process, "run_job", run_job)
    config: Any = None
    return measure_fresh(config, ["one", "two"], "cpu")


@pytest.mark.parametrize("torn", [b'{"case":"two","measure', b"\xff\xfe", b"[]", b'{"case":"tw{"case":"two"}'])
def test_a_line_that_a_child_was_killed_in_costs_no_other_case(monkeypatch: pytest.MonkeyPatch, torn: bytes) -> None:
    whole = to_json(JobResult(case="one", measurement=MEASURED))
    assert told(monkeypatch, whole + b"\n" + torn) == {"one": JobResult(case="one", measurement=MEASURED)}
    assert told(monkeypatch, torn + b"\n" + whole) == {"one": JobResult(case="one", measurement=MEASURED)}


def test_a_child_whose_lines_are_all_torn_has_measured_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FreshProcessError, match="a fresh process measured nothing"):
        told(monkeypatch, b'{"case":"one","meas')


@pytest.mark.parametrize(("total_s", "processes"), [(None, 2 + 3), (20.0 * 2 + 5.0, 2), (20.0 * 3 + 15.0, 2 + 1)])
def test_further_replicates_are_taken_within_what_is_left_of_the_runs_time(
    monkeypatch: pytest.MonkeyPatch, total_s: float | None, processes: int
) -> None:
    now_s, asked = 0.0, []

    def fresh(
        _config: object, cases: Sequence[str], _device: str, budget_s: float | None = None, **_others: object
    ) -> dict[str, JobResult]:
        nonlocal now_s
        now_s += 20.0
        asked.append(budget_s)
        return {case: JobResult(case=case, measurement=MEASURED) for case in cases}

    def restless(_measurement: Measurement) -> object:
        return replicate(100 * MS, neighbours_cores=1.6)

    monkeypatch.setattr(replicates, "measure_fresh", fresh)
    monkeypatch.setattr(replicates, "replicate_of", restless)
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _name: None))
    chosen = [result(outcome=record(replicate(100 * MS, neighbours_cores=1.6)))]
    taking = Replicates(config, chosen, 3, TotalBudget(total_s, lambda: now_s), [])
    taking.take()
    assert len(asked) == processes
    assert asked[:2] == [None, None], "what is saved has its whole budget"
    assert all((further is None) == (total_s is None) for further in asked[2:])


@pytest.mark.parametrize("ending", [FreshProcessError("it crashed", "run the case alone"), KeyboardInterrupt()])
def test_what_one_device_measured_is_kept_when_the_process_of_another_fails(
    monkeypatch: pytest.MonkeyPatch, ending: BaseException
) -> None:
    asked: list[str] = []

    def fresh(_config: object, cases: Sequence[str], device: str, *_: object, **__: object) -> dict[str, JobResult]:
        asked.append(device)
        if device == "cuda:1":
            raise ending
        return {case: JobResult(case=case, measurement=MEASURED) for case in cases}

    monkeypatch.setattr(replicates, "measure_fresh", fresh)
    monkeypatch.setattr(replicates, "device_turn", lambda *_: nullcontext())
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _name: None))
    chosen = [result(case=f"t.py::test[{device}]", outcome=record(device=device)) for device in ("cuda:0", "cuda:1")]
    notes: list[str] = []
    taking = Replicates(config, chosen, 3, TotalBudget(None, lambda: 0.0), notes)
    if isinstance(ending, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            taking.take()
        assert len(taking.kept("t.py::test[cuda:0]")) == 2
    else:
        taking.take()
        assert len(taking.kept("t.py::test[cuda:0]")) == 3
        assert notes == ["baselines with fewer replicates: it crashed\n  -> run the case alone"]
        assert asked.count("cuda:1") == 1, "its next process would fail too"
    assert len(taking.kept("t.py::test[cuda:1]")) == 1
