"""The main job from outside: measure, save, make it worse, read the failure, accept it."""

from __future__ import annotations

import json

import pytest

from perflab.results.documents import read_document
from tests.plugin.conftest import CASE, SPLITTER, Project


def test_code_that_got_slower_fails_says_by_how_much_and_is_accepted_by_the_command_it_names(project: Project) -> None:
    project.run(passed=1).stdout.re_match_lines([r"work .* 100 ms .* new", r"1 new .*--perf-update-new.*"])

    saved = project.run("--perf-update", passed=1)
    saved.stdout.fnmatch_lines(["*saved 1 baseline to baselines/cpu-*/test_story.json"])
    (case,) = json.loads(project.baseline_file().read_text())["cases"].values()
    assert len(case["replicates"]) == 3

    project.run().stdout.re_match_lines([r"work .* 0\.0% .* ok", "1 ok"])

    project.cost(ms=130)
    slower = project.run()
    assert slower.ret == 1
    slower.assert_outcomes(failed=1)
    slower.stdout.re_match_lines(
        [
            r"work is slower than its baseline",
            r"\s+before\s+now\s+change\s+95 % interval\s+limit",
            r"latency\s+100 ms\s+130 ms\s+\+30\.0%\s+\+\d.*…\+\d.*%\s+\+5%",
            r"peak\s+512 KiB\s+512 KiB\s+same\s+exact\s+exact",
            r"measured again 3 times in fresh processes; nothing disturbed it",
            r"if intended: pytest -m perf test_story\.py::test_work --perf-update",
            r"work .* \+30\.0% .* REGRESSED",
            r"1 regressed .*--perf-update.*",
        ]
    )
    assert "Traceback" not in slower.stdout.str()

    project.run("test_story.py::test_work", "--perf-update").assert_outcomes(passed=1)
    project.run().stdout.re_match_lines([r"work .* 130 ms .* ok"])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("-q -vv -xl -rA --tb=short --perf-budget=2 --perf-total-budget=60 --perf-settle=off --perf-columns min", ""),
        ("-xvs --durations 3 --no-header --perf-json=all.json --perf-sort=min", ""),
        (
            "--perf-budget=25 --perf-threshold=4% -pno:doctest -vpno:junitxml",
            "--perf-budget=25 --perf-threshold=4% -pno:doctest -pno:junitxml ",
        ),
    ],
)
def test_the_command_that_accepts_keeps_what_is_about_the_case_and_nothing_of_the_run(
    project: Project, given: str, kept: str
) -> None:
    project.save("--perf-replicates=1")
    project.cost(ms=100, kib=1024)
    said = {line for line in project.run(*given.split()).outlines if line.startswith("if intended: ")}
    assert said == {f"if intended: pytest -m perf {kept}test_story.py::test_work --perf-update"}


def test_a_slow_reading_that_fresh_processes_do_not_confirm_passes_and_says_so(project: Project) -> None:
    project.save()
    # Slow in the session itself, and back to normal in the process that looks again.
    slow_once = 'cost_ms = 200 if "--perf-replicate" not in " ".join(sys.argv) else 100'
    source = project.test_file.read_text().replace("    block =", f"    {slow_once}\n    block =")
    project.test_file.write_text("import sys\n" + source)
    result = project.run(passed=1)
    result.stdout.fnmatch_lines(["*a first reading of +100.0% was not confirmed in fresh processes*", "1 ok*"])


def test_a_slowdown_below_the_threshold_passes_and_a_lower_threshold_finds_it(project: Project) -> None:
    project.save()
    project.cost(ms=103)
    project.run().assert_outcomes(passed=1)
    project.run("--perf-threshold=1%", "--perf-evidence=off").assert_outcomes(failed=1)


def test_code_that_got_faster_passes_and_hints_at_saving_it(project: Project) -> None:
    project.save()
    project.cost(ms=70)
    project.run(passed=1).stdout.re_match_lines([r"work .* -30\.0% .* improved", r"1 improved .*--perf-update.*"])


def test_saving_keeps_cases_that_were_not_run_and_new_ones_can_be_saved_alone(project: Project) -> None:
    project.save()
    project.edit("test_work", "test_other")
    project.cost(ms=120)
    project.run("--perf-update-new").assert_outcomes(passed=1)
    cases = json.loads(project.baseline_file().read_text())["cases"]
    assert sorted(cases) == ["test_other", "test_work"]
    assert cases["test_other"]["replicates"][0]["median_ns"] == 120e6
    assert cases["test_work"]["replicates"][0]["median_ns"] == 100e6

    project.cost(ms=150)
    assert project.run("--perf-update-new").ret == 1, "a case with a baseline is gated, not saved"
    assert json.loads(project.baseline_file().read_text())["cases"] == cases


def test_a_step_names_the_phase_that_got_slower(project: Project) -> None:
    project.test_file.write_text(
        """
from pathlib import Path
from conftest import Virtual

def spend(ms):
    Virtual.now_ns += 1_000_000 * ms

def test_step(perf):
    backward_ms = int((Path(__file__).parent / "cost.txt").read_text().split()[0])
    loss = perf.step(
        forward=lambda: (spend(40), "loss")[1],
        backward=lambda loss: spend(backward_ms) if loss == "loss" else None,
        optimizer=lambda: spend(10),
    )
    assert loss == "loss"
"""
    )
    project.run("--perf-update").stdout.fnmatch_lines(["*forward 40.0 ms · backward 100 ms · optimizer 10.0 ms*"])
    project.cost(ms=190)
    project.run(failed=1).stdout.fnmatch_lines(["where: backward 100 ms -> 190 ms (forward and optimizer unchanged)"])


def test_what_a_plugin_leaves_to_one_part_of_a_split_run_is_measured_again_in_fresh_processes(project: Project) -> None:
    path = project.pytester.path
    project.add(SPLITTER, "conftest.py")
    for name in ("test_other.py", "test_third.py"):  # in the last of three files
        (path / name).write_text("def test_first(perf):\n    perf(sum, range(1000))\n")
    project.test_file.rename(path / "test_zealous.py")
    project.run("--part=2", "--perf-update", "--perf-replicates=3").assert_outcomes(passed=1)
    (entry,) = json.loads(project.baseline_file().read_text())["cases"].values()
    assert len(entry["replicates"]) == 3
    project.cost(ms=160)
    result = project.run("--part=2", failed=1)
    result.stdout.re_match_lines([r"latency\s+100 ms\s+160 ms\s+\+60\.0%.*failed", "measured again 3 times in fresh.*"])


GROUPS = """
def pytest_collection_modifyitems(config, items):
    for item in items if hasattr(config, "workerinput") else ():
        name = f"{item.nodeid}@gpu0"
        for place in ("_nodeid", "_id"):  # of pytest 8 and 9
            if hasattr(item, place):
                setattr(item, place, name)
"""
"""What pytest-xdist's workers do to the ids of tests in a group under ``--dist=loadgroup``."""


@pytest.mark.parametrize("crashes", [False, True])
def test_a_case_whose_id_a_worker_ends_in_the_name_of_its_group_is_the_same_case(
    project: Project, crashes: bool
) -> None:
    pytest.importorskip("xdist")
    project.add(GROUPS, "conftest.py")
    project.save("--perf-replicates=2")
    project.cost(ms=160)
    if crashes:
        project.test_file.write_text(f"import os\n{CASE}    os._exit(3)\n")
    result = project.run("-p", "xdist.plugin", "-n1", "--perf-json=out.json", "--perf-prune", failed=1)
    if not crashes:
        result.stdout.fnmatch_lines(
            ["measured again 3 times*", "if intended: * test_story.py::test_work --perf-update"]
        )
    document = read_document(project.pytester.path / "out.json")
    (found,) = document.results
    assert [found.case] == document.collected == ["test_story.py::test_work"]
    assert found.judgement.verdict == ("failed" if crashes else "regressed")
    assert project.baseline_file().exists(), "it is not stale"
