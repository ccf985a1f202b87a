"""What is caught of ``tests/untrusted/attacks.py``, and who is accused of ``controls.py``, by each way of asking.

    python -m tests.studies.fooling [NAME...] > table.md

Each candidate is judged by ``perflab verify``'s judge, by ``verify`` under ``--perf-adversarial``, by ``perf`` under
``--perf-adversarial``, which has no reference, and by ``perf`` alone. The table is that of docs/untrusted.md.
"""

from __future__ import annotations

import json
import shutil
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
def test_perf(perf):
    perf(candidates.{name}, *task.inputs(1).values())

def test_verify():
    verify(candidates.{name}, task.inputs, reference=task.definition, plain=task.definition, multiple=8.0)
"""
WAYS = (
    ("test_verify", ["--perf-adversarial"]),
    ("test_perf", ["--perf-adversarial"]),
    ("test_perf", []),
)


def run(kind: str, name: str, test: str, options: list[str]) -> str:
    """Return what pytest comes to: ``caught`` with the reason in brief, or ``passed``."""
    with tempfile.TemporaryDirectory() as folder:
        for file in ("task.py", f"{kind}.py"):
            shutil.copy(HERE / file, folder)
        Path(folder, "test_it.py").write_text(SUITE.format(module=kind, name=name))
        command = [sys.executable, "-m", "pytest", "-q", "-m", "perf or not perf", "-k", test, "--perf-budget=0.3"]
        command += ["--perf-device=cpu", "--perf-timeout=10", "--perf-json=out.json", *options]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            return "hangs"
        if done.returncode == 0 and "1 passed" in done.stdout:
            return "passed"
        if test == "test_perf" and Path(folder, "out.json").exists():
            results = json.loads(Path(folder, "out.json").read_text())["results"]
            reasons = results[0]["judgement"].get("reasons", []) if results else []
            return f"caught: {reasons[0] if reasons else 'failed'}"
        return "caught"


def main() -> None:
    """Print the table."""
    print("| candidate | `perflab verify` | `verify`, adversarial | `perf`, adversarial | `perf` |")
    print("|---|---|---|---|---|")
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
