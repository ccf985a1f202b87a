"""Counting under callgrind, from outside. A stand-in takes valgrind's place: the real one needs minutes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from perflab.measured.run.callgrind import total_of
from tests.plugin.conftest import REFUSED, Project, one_line

STAND_IN = """#!{python}
import os, subprocess, sys

options = [argument for argument in sys.argv[1:] if argument.startswith("--")]
until = next(at for at, argument in enumerate(sys.argv) if at and not argument.startswith("--"))
assert "--tool=callgrind" in options and "--collect-atstart=no" in options
assert os.environ["PYTHONHASHSEED"] == "0"
(out,) = [option.split("=")[1] for option in options if option.startswith("--callgrind-out-file=")]
status = subprocess.run(sys.argv[until:], close_fds=False).returncode
with open(out, "w") as file:
    file.write("events: Ir\\nsummary: " + open({cost!r}).read().split()[0] + "\\n")
sys.exit(status)
"""


@pytest.fixture
def valgrind(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name that counts what ``cost.txt`` says, found before any other."""
    folder = project.pytester.mkdir("bin")
    script = folder / "valgrind"
    script.write_text(STAND_IN.format(python=sys.executable, cost=str(project.pytester.path / "cost.txt")))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return script


def test_without_valgrind_it_is_said_before_anything_is_measured(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project.pytester.path))
    project.run("--perf-instructions=callgrind", ret=REFUSED).stderr.fnmatch_lines(
        [
            "ERROR: --perf-instructions=callgrind, but valgrind is not installed",
            "  -> install it (apt-get install valgrind), or use --perf-instructions=auto",
        ]
    )


def test_instructions_are_counted_in_a_process_apart_for_each_replicate(project: Project, valgrind: Path) -> None:
    project.run("--perf-instructions=callgrind", "--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    (case,) = json.loads(project.baseline_file().read_text())["cases"].values()
    assert [replicate["counts"]["callgrind_instructions"] for replicate in case["replicates"]] == [100, 100]


def test_where_callgrind_counts_nothing_all_else_is_judged_and_its_last_words_are_told(
    project: Project, valgrind: Path
) -> None:
    project.run("--perf-instructions=callgrind", "--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    valgrind.write_text("#!/bin/sh\necho illegal instruction\nexit 4\n")
    said = one_line(project.run("--perf-instructions=callgrind", passed=1))
    assert (
        "callgrind instructions of 1 case not compared: callgrind counted nothing and ended (exit status 4): illegal"
        in said
    )
    assert "run with --perf-instructions=auto" in said
    strict = project.run("--perf-instructions=callgrind", "--perf-check=strict", failed=1)
    assert "its callgrind instructions could not be judged" in one_line(strict)


def test_a_rise_that_a_fresh_process_cannot_count_is_not_taken_back(project: Project, valgrind: Path) -> None:
    project.run("--perf-instructions=callgrind", "--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    done, cost = valgrind.parent / "counted", str(project.pytester.path / "cost.txt")
    first, _, rest = valgrind.read_text().partition("\n")
    once = f"import os, sys\nif os.path.exists({str(done)!r}): sys.exit(4)\nopen({str(done)!r}, 'w').close()"
    more = rest.replace(f"open({cost!r}).read().split()[0]", "'90000000'")
    assert more != rest
    valgrind.write_text("\n".join([first, once, more]))
    said = one_line(project.run("--perf-instructions=callgrind"))
    assert (
        "inconclusive callgrind instructions 100 -> 90,000,000 could not be measured again: callgrind counted" in said
    )


def test_what_was_measured_is_saved_without_the_count_that_failed(project: Project, valgrind: Path) -> None:
    valgrind.write_text("#!/bin/sh\nexit 4\n")
    project.run("--perf-instructions=callgrind", "--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    (case,) = json.loads(project.baseline_file().read_text())["cases"].values()
    assert len(case["replicates"]) == 2
    assert all("callgrind_instructions" not in one.get("counts", {}) for one in case["replicates"])


@pytest.mark.parametrize(
    ("profile", "total"),
    [("events: Ir\nfn=f\n1 2\nsummary: 34474\n", 34474), ("events: Ir\ntotals: 7\n", 7), ("events: Ir\n", 0), ("", 0)],
)
def test_a_profiles_total_is_read(profile: str, total: int) -> None:
    assert total_of(profile) == total
