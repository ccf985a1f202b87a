"""Stories of two machines: what is exact is compared everywhere, times only where they are of one machine or pool."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.plugin.conftest import REFUSED, Project, begin_repository, git, one_line

ELSEWHERE = """
import os
import perflab.results.environment

if "STORY_MACHINE" in os.environ:
    perflab.results.environment.this_machine = lambda: os.environ["STORY_MACHINE"]
if "STORY_THREADS" in os.environ:
    import torch

    torch.set_num_threads(int(os.environ["STORY_THREADS"]))
"""


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project that was saved on machine ``a``, and is now on the machine that ``STORY_MACHINE`` names."""
    project.add(ELSEWHERE, "conftest.py")
    monkeypatch.delenv("PERFLAB_MACHINE", raising=False)
    monkeypatch.setenv("STORY_THREADS", "2")
    move_to("a", monkeypatch)
    project.save()
    return project


def move_to(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORY_MACHINE", machine)


@pytest.fixture
def there(here: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same project on machine ``b``, of which no times are saved."""
    move_to("b", monkeypatch)
    return here


def own_files(project: Project) -> list[str]:
    folder = project.pytester.path / ".perflab" / "times"
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*.json"))


def own_replicates(project: Project) -> int:
    (name,) = own_files(project)
    (case,) = json.loads((project.pytester.path / ".perflab" / "times" / name).read_text())["cases"].values()
    return len(case["replicates"])


# --- exact quantities -------------------------------------------------------------------------------------------


def test_times_of_another_machine_are_no_verdict_but_one_line(there: Project) -> None:
    there.cost(ms=300)
    there.run(passed=1).stdout.re_match_lines(
        [
            r"cpu: .* machine b",
            r"work +300 ms .* – .* ok",
            r"no times of b yet: of 1 case only memory and counts were compared",
            r"kept the times of 1 case for the next run here \(save: --perf-update-new\)",
            r"1 ok$",
        ]
    )


def test_strict_wants_the_time_judged_too(there: Project) -> None:
    there.run("--perf-check=strict", failed=1).stdout.fnmatch_lines(
        ["work: its time could not be judged (no times of b yet), and --perf-check fails such cases"]
    )
    there.run("--perf-check=strict", "--perf-update-new").assert_outcomes(passed=1)
    there.run("--perf-check=strict").assert_outcomes(passed=1)


def test_exact_wants_memory_and_counts_alone_and_leaves_times_where_they_are(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.cost(ms=300)
    found = here.run("--perf-check=exact", "--perf-json=results.json", passed=1)
    found.stdout.re_match_lines([r"work +300 ms .* – .* ok", r"1 ok$"])
    taken = here.result()["outcome"]["measurement"]
    assert (len(taken["samples_ns"]), taken["cut_short"]) == (3, True), "nobody compares them"
    move_to("b", monkeypatch)
    here.run("--perf-check=exact", passed=1).stdout.no_fnmatch_line("*no times*")
    assert own_files(here) == []
    here.cost(ms=100, kib=1536)
    here.run("--perf-check=exact", failed=1).stdout.no_fnmatch_line("*no times*")  # also where it was measured again


def test_exact_lets_no_case_pass_that_nothing_is_saved_of(project: Project) -> None:
    project.run("--perf-check=exact").assert_outcomes(failed=1)
    project.run("--perf-check=exact", "--perf-update-new").assert_outcomes(passed=1)
    project.run("--perf-check=exact").assert_outcomes(passed=1)


def test_one_more_mebibyte_fails_on_a_machine_whose_times_are_unknown(there: Project) -> None:
    there.cost(ms=300, kib=1536)
    there.run(failed=1).stdout.re_match_lines([r"work needs more memory than its baseline", r"peak .* \+1\.00 MiB .*"])
    assert own_files(there) == [], "times of what got worse are nothing to compare with"


def test_a_save_elsewhere_updates_what_is_exact_for_all_and_the_times_of_that_machine_alone(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = here.baseline_file().read_bytes()
    move_to("b", monkeypatch)
    here.cost(ms=300, kib=1536)
    here.save()
    folders = {path.parent.name for path in (here.pytester.path / "baselines").glob("cpu-*/*.json")}
    assert {name.rpartition("-")[2] for name in folders} == {"a", "b"}
    move_to("a", monkeypatch)
    here.cost(ms=100, kib=1536)
    here.run().assert_outcomes(passed=1)
    (of_a,) = (here.pytester.path / "baselines").glob("cpu-*-a/*.json")
    assert of_a.read_bytes() == times


MEMORY_NOT_COMPARED = "memory of 1 case not compared: saved with 2 threads, here 1 (save here too: --perf-update-new)"


def test_more_memory_with_other_threads_is_said_not_to_be_compared_and_fails_a_strict_run(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORY_THREADS", "1")
    here.cost(ms=100, kib=2048)
    assert f"of 1 case only counts were compared {MEMORY_NOT_COMPARED} " in one_line(here.run(passed=1))
    here.run("--perf-check=strict", failed=1).stdout.re_match_lines(
        [
            r"work: its memory could not be judged \(saved with 2 threads, here 1\), and --perf-check.*",
            r"if intended: pytest .* --perf-update-new",
        ]
    )


def test_a_line_saved_beside_others_says_how_it_differs_from_theirs(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORY_THREADS", "1")
    here.cost(ms=100, kib=2048)
    result = here.run("--perf-update-new", "--perf-check=strict", passed=1)
    result.stdout.re_match_lines(
        [
            r"memory and counts saved for this environment differ from those saved with 2 threads, here 1:",
            r"  work: memory 512 KiB there, 2\.00 MiB here \(\+300\.0%\)",
        ]
    )
    assert "save here too" not in result.stdout.str()
    assert "not compared" not in here.run("--perf-check=strict", passed=1).stdout.str()


# --- a machine's own history ------------------------------------------------------------------------------------


def test_the_second_run_on_a_machine_compares_with_the_first_and_nothing_is_there_to_commit(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.cost(ms=300)
    begin_repository(here)
    move_to("b", monkeypatch)
    here.run().assert_outcomes(passed=1)
    for _ in range(2):
        result = here.run()
        result.stdout.re_match_lines([r"work +300 ms .* 0\.0% .* ok"])
        assert "kept the times" not in result.stdout.str()
    assert own_replicates(here) == 3
    assert here.pytester.run("git", "status", "--porcelain").outlines == []
    here.cost(ms=400)
    slower = here.run("--perf-settle=off", failed=1)
    slower.stdout.re_match_lines([r"work is slower than its baseline", r"latency +300 ms +400 ms +\+33\.3% .*"])
    assert own_replicates(here) == 3, "a slowdown is nothing to compare with"


def test_a_second_run_beside_other_work_says_what_held_and_how_many_runs_times_lack(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.neighbours(0)
    begin_repository(here)
    git(here, "update-index", "--assume-unchanged", "cost.txt", "neighbours.txt")  # what changes is the machine
    move_to("b", monkeypatch)
    here.run().assert_outcomes(passed=1)
    here.cost(ms=112)
    here.neighbours(1.7)
    said = here.run()
    said.stdout.re_match_lines([r"work +112 ms .* \+12\.0% .* ok", "1 ok"])
    line = "1 of 3 runs kept on this machine, 2 more and times are compared: of 1 case only memory and counts were"
    assert line in one_line(said)
    assert "restarted" not in said.stdout.str()
    assert own_replicates(here) == 4, "of the same code: what they differ by is the machine's noise"
    here.neighbours(0)
    here.cost(ms=300)
    here.run("--perf-settle=off").stdout.re_match_lines([r"work is slower than its baseline"])


def test_a_reading_that_does_not_agree_never_mixes_with_the_history(project: Project) -> None:
    begin_repository(project)
    git(project, "update-index", "--assume-unchanged", "cost.txt")  # what changes is the machine
    project.cost(ms=700)
    project.run().assert_outcomes(passed=1)
    project.cost(ms=50)
    faster = one_line(project.run())
    assert "1 of 3 runs kept on this machine, 2 more and times are compared: of 1 case" in faster
    assert "restarted" not in faster
    project.run()
    assert own_replicates(project) == 2
    project.cost(ms=700)
    slower = one_line(project.run())
    assert "the code is the same: work (50.0 ms before, 700 ms now) -> if these times are the usual ones" in slower
    assert own_replicates(project) == 2
    project.cost(ms=50)
    assert "noisy" not in project.run().stdout.str()


@pytest.mark.parametrize(("options", "is_told"), [([], True), (["--perf-machine=fleet"], False)])
def test_a_container_is_told_to_name_its_machine(project: Project, options: list[str], *, is_told: bool) -> None:
    project.add("\nenvironment.machine_identifier = lambda: ''\n", "conftest.py")
    said = one_line(project.run(*options))
    assert "kept the times of 1 case" in said
    assert ("name it with --perf-machine=NAME" in said) == is_told


def test_an_update_moves_the_history_to_what_is_committed(there: Project) -> None:
    there.run().assert_outcomes(passed=1)
    assert len(own_files(there)) == 1
    there.run("--perf-update-new").assert_outcomes(passed=1)
    assert own_files(there) == []
    assert len(list((there.pytester.path / "baselines").glob("cpu-*-b/*.json"))) == 1


def test_what_is_committed_wins_over_a_history(there: Project) -> None:
    there.cost(ms=300)
    there.run().assert_outcomes(passed=1)
    (mine,) = (there.pytester.path / ".perflab" / "times").glob("*/*.json")
    committed = there.pytester.path / "baselines" / mine.parent.name / mine.name
    committed.parent.mkdir()
    committed.write_text(re.sub(r'"(median|fastest|mean)_ns": \d+\.0', r'"\1_ns": 100000000.0', mine.read_text()))
    there.run().stdout.re_match_lines([r"work +300 ms .* \+200\.0% .*"])


def test_a_case_without_any_baseline_stays_new_and_is_compared_with_the_last_run(project: Project) -> None:
    project.run().stdout.re_match_lines([r"work .* – .* new"])
    project.run().stdout.re_match_lines([r"work .* 0\.0% .* new"])
    project.run("--perf-check=strict").assert_outcomes(failed=1)


# --- pools ------------------------------------------------------------------------------------------------------


def test_machines_of_one_pool_share_their_times(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    here.save("--perf-machine=fleet")
    move_to("b", monkeypatch)
    here.cost(ms=130)
    result = here.run("--perf-settle=off", "--perf-evidence=off", "--perf-machine=fleet", failed=1)
    result.stdout.re_match_lines([r"work is slower than its baseline", r".*machine fleet.*"])


def test_the_command_line_names_the_pool_before_the_variable_and_this_before_the_ini_file(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.add("\nperf_machine = of-the-ini\n", "tox.ini")
    here.run("--perf-update").stdout.fnmatch_lines(["*machine of-the-ini*"])
    monkeypatch.setenv("PERFLAB_MACHINE", "of-the-variable")
    here.run("--perf-update").stdout.fnmatch_lines(["*machine of-the-variable*"])
    folders = {path.name.rpartition("-of-the-")[2] for path in (here.pytester.path / "baselines").iterdir()}
    assert folders >= {"ini", "variable"}
    here.run("--perf-check=off", "--perf-machine=of-the-option").stdout.fnmatch_lines(["*machine of-the-option*"])


@pytest.mark.parametrize("name", ["my fleet", "../fleet", "Fleet", "-fleet", "x" * 41])
def test_a_pools_name_that_no_folder_can_have_is_refused(here: Project, name: str) -> None:
    result = here.run(f"--perf-machine={name}", ret=REFUSED)
    result.stderr.re_match_lines([rf"ERROR: --perf-machine: '{re.escape(name)}' cannot name machines; use lower.*"])
    assert os.listdir(here.pytester.path / "baselines")


def test_a_committed_history_is_told_by_its_commit(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_repository(here)
    move_to("b", monkeypatch)
    here.run().assert_outcomes(passed=1)
    (name,) = own_files(here)
    (case,) = json.loads((here.pytester.path / ".perflab" / "times" / name).read_text())["cases"].values()
    assert re.fullmatch(r"[0-9a-f]{40}", case["commit"])


def test_times_of_a_run_that_a_profiler_has_ranges_opened_in_are_not_kept(
    there: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFLAB_NVTX", "1")
    there.run("--perf-check=off").stdout.no_fnmatch_line("*kept the times*")
    assert own_files(there) == []
    monkeypatch.setenv("PERFLAB_NVTX", "0")
    there.run("--perf-check=off").stdout.fnmatch_lines(["*kept the times of 1 case for the next run here*"])


def test_where_ranges_are_opened_within_calls_nothing_is_judged_or_saved_whoever_asks(
    there: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under ``perflab nsys`` the ranges' cost is in all times, also where a Makefile gives the options."""
    there.run("--perf-check=strict").assert_outcomes(failed=1)  # there are no times of this machine
    monkeypatch.setenv("PERFLAB_NVTX", "1")
    there.run("--perf-check=strict").assert_outcomes(passed=1)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--perf-update")
    result = there.run(ret=REFUSED)
    result.stderr.fnmatch_lines(["ERROR: --perf-update where PERFLAB_NVTX is set, as perflab nsys does*"])
