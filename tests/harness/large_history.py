"""A large history: writes a folder of reports, then reads and judges it in a process of its own, timed.

``python -m tests.harness.large_history DIR [--cases=10000] [--runs=100]`` prints what it took, and the peak of memory.
Noise is log-normal; one run in the middle slows every hundredth case by 8 %, and one more operator comes with it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

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
NOISE = 0.02


def report(run: int, cases: int, *, slower_from: int, noise: float = NOISE, seed: int = 0) -> dict[str, Any]:
    """One run's report as ``perflab report --format=json`` writes it."""
    chance = random.Random(f"{seed} {run}")
    rows = [_case(number, run >= slower_from, chance, noise) for number in range(cases)]
    created = datetime(2026, 1, 1, 3, tzinfo=UTC) + timedelta(days=run)
    head = {"label": f"run-{run:04}.json", "created": created.isoformat(), "perflab": "0.1.0", "exitstatus": 0}
    body = {"complete": True, "commit": f"{run:040x}", "environments": [ENVIRONMENT], "cases": rows}
    return {"kind": "perflab report", "schema": 1, "runs": [{**head, **body}]}


def _case(number: int, slow: bool, chance: random.Random, noise: float) -> dict[str, Any]:
    changed = slow and number % 100 == 0
    median_ns = 1e6 * (1 + number % 50) * (1.08 if changed else 1.0) * chance.lognormvariate(0, noise)
    fastest_ns, calibration_ns = median_ns * 0.97, 20_000 * chance.lognormvariate(0, noise)
    return {
        "case": f"tests/perf/test_module_{number // 100}.py::test_case[{number % 100}-fp32]",
        "variant": "",
        "tier": "measured",
        "environment": 0,
        "verdict": "ok",
        "reasons": [],
        "parameters": {"size": number % 100, "precision": "fp32"},
        "quantities": {
            "latency": {
                "unit": "ns",
                "now": round(median_ns, 1),
                "before": round(median_ns / 1.01, 1),
                "ratio": 1.01,
                "low": 0.99,
                "high": 1.03,
                "limit": 1.05,
                "exact": False,
            },
            "fastest": {"unit": "ns", "now": round(fastest_ns, 1), "exact": False},
            "peak": {"unit": "bytes", "now": 1024 * (1000 + number), "before": 1024 * (1000 + number), "exact": True},
            "operators": {"unit": "count", "now": 100 + changed, "before": 100, "exact": True},
            "calibration interpreter": {"unit": "ns", "now": round(calibration_ns, 1), "exact": False},
        },
    }


def write(folder: Path, runs: int, cases: int) -> None:
    """Write a folder of them; files that are there already stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in range(runs):
        path = folder / f"run-{run:04}.json"
        if not path.exists():
            path.write_text(json.dumps(report(run, cases, slower_from=runs // 2)))


def judge(folder: Path) -> dict[str, float]:
    """Load and judge a folder in this process: seconds of both, and bytes of memory at the peak."""
    from perflab.history.command import read_history
    from perflab.history.telling import contents_of

    begun, begun_cpu = time.perf_counter(), time.process_time()
    history = read_history(str(folder), None, git=False, quantity=None)
    history.finish()
    loaded = time.perf_counter()
    contents = contents_of(history, folder)
    ended = time.perf_counter()
    return {
        "runs": len(contents.runs),
        "series": len(contents.series),
        "points": sum(len(one.values) for one in contents.series),
        "events": len(contents.events),
        "alarms": sum(one.kind == "alarm" for one in contents.events),
        "load_s": round(loaded - begun, 2),
        "judge_s": round(ended - loaded, 2),
        "processor_s": round(time.process_time() - begun_cpu, 2),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--judge", action="store_true", help="only read and judge what is there, in this process")
    given = parser.parse_args()
    if given.judge:
        print(json.dumps(judge(given.folder)))
    else:
        write(given.folder, given.runs, given.cases)
        size = sum(path.stat().st_size for path in given.folder.glob("*.json"))
        print(f"{given.runs} reports of {given.cases} cases, {size / 1e6:.0f} MB", flush=True)
        command = [sys.executable, "-m", "tests.harness.large_history", str(given.folder), "--judge"]
        print(subprocess.run(command, env=os.environ, check=True, capture_output=True, text=True).stdout, end="")
