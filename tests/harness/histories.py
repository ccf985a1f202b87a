"""Folders of results with a history that a test chooses: levels by run, noise that is the same at each call."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from perflab.cli import main
from perflab.history.command import read_history
from perflab.history.contents import Contents
from perflab.history.telling import contents_of
from perflab.history.text import as_text

ENVIRONMENT = {
    "device": "cpu",
    "device_name": "AMD EPYC (family 25, model 17)",
    "cores": 8,
    "threads": 8,
    "isa": "AVX512",
    "system": "Linux x86_64",
    "python": "3.12",
    "torch": "2.13.0",
    "machine": "nightly",
}
NS, BYTES, COUNT = "ns", "bytes", "count"
UNITS = {"latency": NS, "peak": BYTES, "operators": COUNT}
Values = Callable[[int], Mapping[str, float]]
"""From a run's number to a case's quantities."""


def case_name(number: int) -> str:
    return f"tests/perf/test_model.py::test_step[{number}]"


def write_runs(
    folder: Path,
    runs: int,
    cases: Mapping[str, Values],
    *,
    commits: Callable[[int], str | None] = lambda run: f"{run + 1:040x}",
) -> None:
    """Write a report as JSON for each run, a day apart."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in range(runs):
        rows = [
            {
                "case": case,
                "variant": "",
                "environment": 0,
                "verdict": "ok",
                "quantities": {
                    name: {"unit": UNITS.get(name, NS), "now": value, "exact": name in ("peak", "operators")}
                    for name, value in values(run).items()
                },
            }
            for case, values in cases.items()
        ]
        created = datetime(2026, 1, 1, 3, tzinfo=UTC) + timedelta(days=run)
        one: dict[str, Any] = {"created": created.isoformat(), "commit": commits(run)}
        one |= {"environments": [ENVIRONMENT], "cases": rows}
        text = json.dumps({"kind": "perflab report", "schema": 1, "runs": [one]})
        (folder / f"run-{run:03}.json").write_text(text, encoding="utf-8")


def noisy(level: Callable[[int], float], seed: int, noise: float = 0.01) -> list[float]:
    """Levels with log-normal noise, for 200 runs."""
    chance = random.Random(seed)
    return [level(run) * chance.lognormvariate(0, noise) for run in range(200)]


def latency(level: Callable[[int], float], seed: int, noise: float = 0.01) -> Values:
    """A case whose time has a level by run, in nanoseconds, and noise."""
    values = noisy(level, seed, noise)
    return lambda run: {"latency": values[run]}


def step(at: int, before: float = 1e6, after: float = 1.1e6) -> Callable[[int], float]:
    """A level that changes once."""
    return lambda run: after if run >= at else before


def contents_in(folder: Path, quantity: str | None = None) -> Contents:
    """A folder, read and judged."""
    history = read_history(str(folder), None, git=False, quantity=quantity)
    history.finish()
    return contents_of(history, folder)


def told(contents: Contents) -> str:
    """What its text says: all but the first line, which names the folder, and the points, which a test chose itself."""
    return re.split(r"\n\n(?=\w+ of )", as_text(contents, 100).partition("\n")[2])[0]


def git(folder: Path, *words: str) -> str:
    """What git prints."""
    identity = ["-c", "user.name=perflab", "-c", "user.email=perflab@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commits_in(folder: Path, many: int) -> list[str]:
    """Make a repository of commits that change nothing, ``change 0`` and so on; return their names."""
    git(folder, "init", "--quiet")
    commits = []
    for number in range(many):
        git(folder, "commit", "--quiet", "--allow-empty", f"--message=change {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


WORKLOADS = ("interpreter", "matmul", "memory")


def beside_fixed_work(seed: int, case: float, **machine: float) -> Any:
    """A case whose time steps by a ratio at run 20, and calibration workloads that step by theirs."""
    times = noisy(step(20, after=case * 1e6), seed)
    fixed = {
        name: noisy(step(20, 5e4, 5e4 * machine.get(name, 1.0)), seed + 100 * (1 + at))
        for at, name in enumerate(WORKLOADS)
    }
    return lambda run: {"latency": times[run]} | {f"calibration {name}": fixed[name][run] for name in WORKLOADS}


def everywhere(ratio: float) -> dict[str, float]:
    return dict.fromkeys(WORKLOADS, ratio)


def some_nights(folder: Path) -> None:
    times = noisy(step(30), 3)
    write_runs(
        folder,
        40,
        {
            case_name(1): lambda run: {"latency": times[run], "operators": 5 + (run >= 30), "peak": 4096},
            case_name(2): latency(lambda run: 2e6, 4),
        },
    )


def page_of(folder: Path) -> Path:
    page = folder / "page.html"
    assert main(["history", str(folder / "nights"), "--format=html", f"--output={page}"]) == 0
    return page
