"""A sweep's reports on their way: a job appends them to a file, a line a test, and the session reads what is new.

A test that has begun has a line too, so that a job that dies leaves the name of the test that it died in.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perflab.base.data import Data
from perflab.noting import case_id


class JobFile(Data, frozen=True):
    """The instructions of a job, in a file whose path is the job's option."""

    cases: list[str]
    reports: str
    """The path of the file to append reports to."""
    baselines: str | None = None
    """The folder of the job's own baselines, if it saves any: it begins as a copy of the project's."""


def read_job_file(path: str) -> JobFile:
    """Read what a job is told."""
    return msgspec.json.decode(Path(path).read_bytes(), type=JobFile)


def become_a_job(config: pytest.Config) -> None:
    """Make this process collect and run only the tests of its job, and write their reports."""
    from perflab.running.case.fresh_process import FreshProcess
    from perflab.tiers.job import Job

    job = read_job_file(config.getoption("perf_sweep_job"))
    config.pluginmanager.register(FreshProcess(config, Job(cases=job.cases)), "perflab-fresh-process")
    if os.environ.get("RANK", "0") == "0":  # of the ranks that torchrun has started on several nodes, the first
        config.pluginmanager.register(Writer(config, Path(job.reports)), "perflab-reports")


class Writer:
    """Plugin of a job that appends its tests' reports to the file."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path
        self._reports: dict[str, list[Any]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Write that a test begins."""
        self._append({"begun": case_id(item)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report until its test has ended."""
        plain = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.setdefault(report.nodeid, []).append(plain)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Write the test's reports."""
        self._append({"ended": nodeid, "reports": self._reports.pop(nodeid, [])})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write that the job has ended by itself, its baselines saved."""
        self._append({"whole": True})

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line, default=str) + "\n")


class Reader:
    """Reads what a job has written since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.running: str | None = None
        """The test that has begun and not ended."""
        self.is_whole = False
        """Whether the job has ended by itself."""

    def new(self) -> list[tuple[str, list[Any]]]:
        """Return the tests that have ended, each with its reports as plain data."""
        found = []
        if not self._path.exists():
            return []
        with self._path.open() as file:
            file.seek(self._position)
            while (line := file.readline()).endswith("\n"):  # the last one may be half written
                self._position = file.tell()
                told = json.loads(line)
                self.running = told.get("begun")
                self.is_whole = "whole" in told
                if "ended" in told:
                    found.append((told["ended"], told["reports"]))
        return found
