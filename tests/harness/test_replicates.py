"""Replicates from fresh processes: what is left of a damaged report, and what further ones may take."""

from __future__ import annotations

import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from perflab.base.errors import FreshProcessError
from perflab.measured.run import replicates
from perflab.measured.run.replicates import Replicates
from perflab.processes.peer import Ending, How
from perflab.results.measurement import Measurement
from perflab.running.case import fresh_process
from perflab.running.case.fresh_process import measure_fresh
from perflab.settings.settings import TotalBudget
from perflab.tiers.job import Job, JobResult
from tests.harness.make import MS, record, replicate, result

MEASURED = Measurement(samples_ns=[100 * MS] * 10, repetitions=1, warmup_calls=3, settled=True, clock="host")


def told(monkeypatch: pytest.MonkeyPatch, ending: Ending, *answers: JobResult) -> dict[str, JobResult]:
    """What is known of two cases from a process with these answers and this end."""
    monkeypatch.setattr(fresh_process, "run_job", lambda *_, **__: (list(answers), ending))
    config: Any = None
    return measure_fresh(config, Job(cases=["one", "two"]), "cpu")


def test_a_process_that_dies_costs_no_case_that_it_had_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    one = JobResult(case="one", measurement=MEASURED)
    killed = Ending(How.ENDED, status=-9)
    assert told(monkeypatch, killed, one) == {"one": one}
    assert told(monkeypatch, killed, JobResult(case="two", problem="hung"), one) == {"one": one}


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Ending(How.ENDED, status=4, output=b"no such option"), "ended (exit status 4), before it had measured one"),
        (Ending(How.HUNG, silent_s=9.0), "hung and was stopped: no answer for 9.00 s, before it had measured one"),
        (Ending(How.OUT_OF_TIME, lasted_s=7.0), "was stopped after 7.00 s, since the run's time was over, before it"),
    ],
)
def test_why_a_process_measured_nothing_is_told(monkeypatch: pytest.MonkeyPatch, ending: Ending, said: str) -> None:
    with pytest.raises(FreshProcessError, match=re.escape(f"a fresh process {said}")):
        told(monkeypatch, ending)
    with pytest.raises(FreshProcessError, match=r"^one in a fresh process hung: no progress"):
        told(monkeypatch, ending, JobResult(case="one", problem="hung: no progress"))


@pytest.mark.parametrize(("total_s", "processes"), [(None, 2 + 3), (20.0 * 2 + 5.0, 2), (20.0 * 3 + 15.0, 2 + 1)])
def test_further_replicates_are_taken_within_what_is_left_of_the_runs_time(
    monkeypatch: pytest.MonkeyPatch, total_s: float | None, processes: int
) -> None:
    now_s, asked = 0.0, []

    def fresh(_config: object, job: Job, *_: object, **__: object) -> dict[str, JobResult]:
        nonlocal now_s
        now_s += 20.0
        asked.append(job.budget_s)
        return {case: JobResult(case=case, measurement=MEASURED) for case in job.cases or ()}

    def restless(_measurement: Measurement) -> object:
        return replicate(100 * MS, neighbours_cores=1.6)

    monkeypatch.setattr(replicates, "measure_fresh", fresh)
    monkeypatch.setattr(replicates, "replicate_of", restless)
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _name: None), stash=pytest.Stash())
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

    def fresh(_config: object, job: Job, device: str, **_: object) -> dict[str, JobResult]:
        asked.append(device)
        if device == "cuda:1":
            raise ending
        return {case: JobResult(case=case, measurement=MEASURED) for case in job.cases or ()}

    monkeypatch.setattr(replicates, "measure_fresh", fresh)
    monkeypatch.setattr(replicates, "device_turn", lambda *_: nullcontext())
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _name: None), stash=pytest.Stash())
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
