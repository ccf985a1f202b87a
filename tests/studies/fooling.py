"""What is caught of ``tests/untrusted/attacks.py``, and who is accused of ``controls.py``, by each way of asking.

    python -m tests.studies.fooling [NAME...] > table.md

Each candidate is judged by ``perflab verify``'s judge; under ``--perf-adversarial`` by ``verify``, by ``perf`` with
``perf.reference`` and without it; and by ``perf`` alone. The table is that of docs/untrusted.md: **×0.01** is a
hundredth of the definition's time, and a miss for an attack.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from perflab.untrusted.command import held
from perflab.untrusted.records import Finding
from tests.untrusted.attacks import ATTACKS
from tests.untrusted.controls import CONTROLS
from tests.untrusted.test_attacks import judged

HERE = Path(__file__).parents[1] / "untrusted"
SUITE = """
import pytest, task, {module} as candidates
from perflab.correctness import verify

@pytest.mark.perf
def test_perf_of_the_definition(perf):
    perf(task.definition, *task.inputs(1).values())

@pytest.mark.perf
def test_perf_of_the_candidate(perf):
    if {refers}:
        perf.reference(task.definition, multiple=8.0)
    perf(candidates.{name}, *task.inputs(1).values())

def test_verify():
    verify(candidates.{name}, task.inputs, reference=task.definition, plain=task.definition, multiple=8.0)
"""
WAYS = (
    ("test_verify", False, ["--perf-adversarial"]),
    ("test_perf", True, ["--perf-adversarial"]),
    ("test_perf", False, ["--perf-adversarial"]),
    ("test_perf", False, []),
)
"""The test, whether its case states a reference, and pytest's options."""


PARENT = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
"""A parent for pytest, which a candidate may kill instead of the study."""
FASTER = 0.7
"""A candidate with less than this share of the definition's time is faster than it."""


def run(kind: str, name: str, test: str, refers: bool, options: list[str]) -> str:
    """Return what pytest comes to: ``caught`` with the reason in brief, ``right``, or how fast the candidate seems."""
    with tempfile.TemporaryDirectory() as folder:
        for file in ("task.py", f"{kind}.py"):
            shutil.copy(HERE / file, folder)
        Path(folder, "test_it.py").write_text(SUITE.format(module=kind, name=name, refers=refers))
        command = [
            sys.executable,
            "-c",
            PARENT,
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "perf or not perf",
            "-k",
            test,
            "--perf-budget=0.3",
        ]
        command += ["--perf-device=cpu", "--perf-timeout=40", "--perf-json=out.json", *options]
        environment = {**os.environ, "TMPDIR": folder}  # a confined candidate has a folder of its own, too
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        ) as done:
            try:
                done.wait(120)
            except subprocess.TimeoutExpired:
                return "hangs"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(done.pid, signal.SIGKILL)
        if test == "test_verify":
            return "right" if done.returncode == 0 else "caught"
        file = Path(folder, "out.json")
        results = json.loads(file.read_text())["results"] if file.exists() else []
        if done.returncode or len(results) != 2:
            reasons = results[-1]["judgement"].get("reasons", []) if len(results) == 2 else ["crash"]
            return f"caught: {reasons[0] if reasons else 'failed'}"
        if any("outcome" not in one for one in results):
            return "not measured"  # a kernel in Triton's interpreter
        true_ns, told_ns = (one["outcome"]["summary"]["median_ns"] for one in results)
        ratio = told_ns / true_ns
        return f"**×{ratio:.2g}**" if ratio < FASTER else "not faster"


def main() -> None:
    """Print the table."""
    print(
        "| candidate | `perflab verify` | `verify`, adversarial | `perf`, adversarial, with a reference "
        "| `perf`, adversarial | `perf` |"
    )
    print("|---|---|---|---|---|---|")
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before any process loads Triton, as the tests have it
    with held("cpu", 60.0, [], []) as holding:
        for kind, names in (("attacks", ATTACKS), ("controls", CONTROLS)):
            for name in [one for one in names if one in sys.argv[1:] or not sys.argv[1:]]:
                found = judged(kind, name, holding, budget_s=2.0)
                told = (
                    f"{found.finding}: {found.reason}"
                    if found.finding is not Finding.OK and found.reason
                    else found.finding
                )
                print(f"| `{name}` | {told} |", " | ".join(run(kind, name, *way) for way in WAYS), "|", flush=True)


if __name__ == "__main__":
    main()
