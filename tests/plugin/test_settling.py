"""What stored numbers cannot tell, settled in turns with the commit that they were saved at, seen from outside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perflab.base.errors import InShort
from perflab.base.git import CodeOf, code_of, current_commit, differs_from, run_git, top_of
from perflab.measured.run.settle import why_not_settled
from perflab.turns.comparison import Compared
from perflab.turns.messages import Ended
from tests.plugin.conftest import Project, begin_repository, commit, git, git_in, one_line, worktrees

CASE = """
import os
from pathlib import Path

import pytest
import torch
from conftest import Virtual

here = Path(__file__).parent

def work():
    cost_ms, kib = (int(n) for n in (here / "cost.txt").read_text().split())
    block = torch.empty(1024 * kib, dtype=torch.uint8)
    Virtual.now_ns += round(1_000_000 * cost_ms * float(os.environ.get("MACHINE", "1")))
    return block.numel()

@pytest.mark.parametrize("size", ["a/b::c"])
class TestIt:
    def test_work(self, perf, size):
        assert perf(work) > 0
"""
BUSY = 1.5
"""Cores that others use beside each process: stored numbers cannot tell a slowdown from that."""


@pytest.fixture
def saved(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project in git whose baseline was saved on a calm machine from code that was then committed with it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project.test_file.write_text(CASE)
    project.cost(ms=300)
    begin_repository(project)
    project.cost(ms=100)
    project.save("--perf-replicates=2")
    assert "+dirty" in project.baseline_file().read_text()
    commit(project, "faster, with its baseline")
    return project


def test_a_slowdown_that_a_faster_machine_hides_fails_in_turns_with_what_the_case_was_before_it_moved(
    saved: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(saved, "rev-parse", "--short=7", "HEAD").strip()
    monkeypatch.setenv("MACHINE", "0.95")
    saved.cost(ms=110)
    hidden = saved.run("--perf-settle=off", "--perf-json=results.json", passed=1)
    hidden.stdout.re_match_lines([r"work\[a/b::c\] .* \+4\.5% .* ok"])
    assert "paired" not in saved.result()["outcome"]
    assert worktrees(saved) == 0
    saved.test_file.rename(saved.test_file.with_name("test_moved.py"))
    result = saved.run("--perf-json=results.json", "test_moved.py", failed=1)
    assert "compared with test_story.py::TestIt::test_work[a/b::c], moved" in one_line(result)
    result.stdout.re_match_lines(
        [
            rf"work\[a/b::c\] is slower than in {head}, which added its baseline",
            r"latency\s+95\.0 ms\s+104 ms\s+\+10\.0%\s+\+\d.*…\+\d.*%\s+\+5%",
            r"7 interleaved pairs of fresh processes; base against base: 0\.0%.*",
            r"if intended: .*--perf-update --perf-reason=.*",
            r"work\[a/b::c\] .* \+10\.0% .* REGRESSED",
        ]
    )
    assert saved.result()["outcome"]["paired"]["confirm"] == pytest.approx([1.1] * 4)
    assert worktrees(saved) == 1


def test_a_cost_in_every_second_call_that_stored_numbers_cannot_judge_fails_in_turns(saved: Project) -> None:
    source = saved.test_file.read_text().replace("@pytest.mark", "calls = iter(range(10**9))\n\n@pytest.mark", 1)
    assert source != saved.test_file.read_text()
    saved.test_file.write_text(source.replace("cost_ms *", "cost_ms * (1 + 2 * (next(calls) % 2)) *"))
    result = saved.run("--perf-json=results.json", "--perf-evidence=off", failed=1)
    result.stdout.re_match_lines([r"latency\s+100 ms\s+(19|20)\d ms\s+\+(9|10)\d.*", r".* REGRESSED"])
    assert "interleaved pairs of fresh processes; means of all calls are compared" in one_line(result)
    paired = saved.result()["outcome"]["paired"]
    assert (paired["judged"], len(paired["confirm"])) == ("mean", 4)


def test_a_machine_that_became_slower_is_not_the_code_in_a_worker_either(
    saved: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("MACHINE", "1.04")
    (saved.pytester.path / "notes.txt").write_text("a change")
    commit(saved, "another file")
    result = saved.run("--perf-json=results.json", "-p", "xdist.plugin", "-n2", passed=1)
    result.stdout.re_match_lines([r"work\[a/b::c\] .* 0\.0% .* ok"])
    assert "which added its baseline: 0.0%" in one_line(result)
    assert saved.result()["outcome"]["paired"]["screen"] == [1.0] * 2


def test_where_no_file_has_changed_there_is_nothing_to_compare_with(
    saved: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACHINE", "1.3")
    saved.neighbours(BUSY)
    result = saved.run("--perf-json=results.json", "--perf-replicates=1", passed=1)
    result.stdout.re_match_lines([r"work\[a/b::c\] .* \+30\.0% .* inconclusive"])
    assert "other processes used 1.5 cores meanwhile" in one_line(result)
    assert "no tracked file has changed since" in one_line(result)
    assert "paired" not in saved.result()["outcome"]


def test_what_looks_faster_where_no_file_has_changed_is_said_so_and_nobody_is_sent_to_look_for_a_slowdown(
    saved: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACHINE", "0.01")
    result = saved.run("--perf-replicates=1", passed=1)
    result.stdout.re_match_lines([r"work\[a/b::c\] .* -99\.0% .* inconclusive", r"1 inconclusive$"])
    assert "no tracked file has changed since" in one_line(result)
    assert "the machine or an installed package may have changed" in one_line(result)
    assert "slower" not in one_line(result)


def test_a_baseline_that_was_never_committed_has_no_code_to_go_back_to(saved: Project) -> None:
    saved.cost(ms=90)
    saved.save("--perf-replicates=2")
    saved.cost(ms=94)
    saved.run("--perf-json=results.json", passed=1).stdout.re_match_lines([r"work\[a/b::c\] .* \+4\.4% .* ok"])
    assert "paired" not in saved.result()["outcome"]


def test_a_commit_that_does_not_run_any_more_is_named_with_what_shows_why(saved: Project) -> None:
    good = git(saved, "rev-parse", "HEAD~1").strip()
    source = saved.test_file.read_text()
    commit(saved, "broken", "import no_such_module\n" + source)
    broken = git(saved, "rev-parse", "HEAD").strip()
    file = saved.baseline_file()
    file.write_text(file.read_text().replace(f"{good}+dirty", broken))
    saved.test_file.write_text(source)
    saved.cost(ms=130)
    saved.neighbours(BUSY)
    result = saved.run("--perf-replicates=1", passed=1)
    result.stdout.re_match_lines([r"work\[a/b::c\] .* \+30\.0% .* inconclusive"])
    assert f"no A/B re-run with {broken[:7]}, where its baseline was saved: its process ended" in one_line(result)
    assert f"(see: --perf-against={broken[:7]})" in one_line(result)
    assert "no_such_module" not in one_line(result)


def test_a_case_that_is_not_on_both_sides_is_not_settled_and_that_is_said() -> None:
    def compared(**ended: str) -> Compared:
        return Compared("it", ended={side: Ended(case="it", outcome=how) for side, how in ended.items()})

    assert why_not_settled(compared(head="passed", base="passed"), "1234567890") is None
    assert why_not_settled(compared(head="passed"), "1234567890") == "the case did not exist there"
    assert (
        why_not_settled(compared(base="passed"), "1234567890") == "the case was not collected again in a fresh process"
    )
    assert why_not_settled(compared(head="passed", base="failed"), "1234567890") == (
        "failed there (see: --perf-against=1234567)"
    )
    assert why_not_settled(compared(head="died"), "1234567890") == (
        "died here, in a fresh process (see: --perf-against=1234567)"
    )
    for whose, said in (("1234567", "it was killed"), ("working tree", "working tree: it was killed")):
        lost = Compared("it", lost=InShort("it was killed", whose))
        assert why_not_settled(lost, "1234567890") == f"{said} (see: --perf-against=1234567)"


# --- which commit -------------------------------------------------------------------------------------------


class Repository:
    """A git repository with a baseline file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "baselines" / "here" / "test_it.json"
        self.file.parent.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        return git_in(self.root, *arguments).strip()

    def commit(self, **files: str) -> str:
        """Write Python files, and commit all that there is; the commit's name."""
        for name, text in files.items():
            (self.root / f"{name}.py").write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "more")
        return self.git("rev-parse", "HEAD")

    def save(self, recorded: str) -> None:
        """A baseline of this date."""
        self.file.write_text(f'{{"recorded": "{recorded}"}}\n')

    @property
    def baselines(self) -> Path:
        return self.root / "baselines"

    def code_of(self, recorded: str, commit: str | None) -> CodeOf:
        return code_of("baseline", self.root, self.baselines, recorded, commit)


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project")


DAY, NEXT_DAY = "2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z"


def test_a_commit_without_changes_is_taken_at_its_word(repo: Repository) -> None:
    first = repo.commit(code="1")
    repo.save(DAY)
    assert current_commit(repo.root, repo.baselines) == first
    repo.commit(code="2")
    assert repo.code_of(DAY, first) == CodeOf(first, "where its baseline was saved")


def test_a_baseline_saved_before_its_code_was_committed_belongs_to_the_commit_that_brought_it(repo: Repository) -> None:
    first = repo.commit(code="1")
    (repo.root / "code.py").write_text("2")
    dirty = current_commit(repo.root, repo.baselines)
    assert dirty == f"{first}+dirty"
    repo.save(DAY)
    assert repo.code_of(DAY, dirty) == CodeOf(None, "its baseline is not committed")
    second = repo.commit()
    repo.save(NEXT_DAY)
    third = repo.commit(code="3")
    assert repo.code_of(DAY, dirty) == CodeOf(second, "which added its baseline")
    assert repo.code_of(NEXT_DAY, f"{second}+dirty").commit == third
    assert repo.code_of(DAY[:10], dirty).commit is None, "half a date is no date"


def test_a_baseline_that_was_committed_before_its_code_has_none(repo: Repository) -> None:
    first = repo.commit(code="1")
    repo.save(DAY)
    (repo.root / "code.py").write_text("2")
    repo.git("add", "baselines")
    repo.git("commit", "--quiet", "--message", "the baseline alone")
    repo.commit()
    code = repo.code_of(DAY, f"{first}+dirty")
    assert code == CodeOf(None, "its baseline was committed before the code that it was saved from")


@pytest.fixture
def silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a git before the real one that fails at one command, as on a broken disk."""

    def put(command: str) -> None:
        shim = tmp_path / "bin" / "git"
        shim.parent.mkdir()
        real = shutil.which("git")
        shim.write_text(f'#!/bin/sh\ncase " $* " in *" {command} "*) exit 128 ;; esac\nexec {real} "$@"\n')
        shim.chmod(0o755)
        monkeypatch.setenv("PATH", f"{shim.parent}{os.pathsep}{os.environ['PATH']}")

    return put


def test_a_tree_of_which_git_does_not_answer_is_not_taken_to_be_clean(
    repo: Repository, silence: Callable[[str], None]
) -> None:
    first = repo.commit(code="1")
    (repo.root / "code.py").write_text("2")
    silence("status")
    assert current_commit(repo.root, repo.baselines) == f"{first}+dirty"


def test_a_difference_of_which_git_does_not_answer_is_not_taken_to_be_one(
    repo: Repository, silence: Callable[[str], None]
) -> None:
    first = repo.commit(code="1")
    repo.save(DAY)
    repo.commit(code="2")
    silence("diff")
    assert repo.code_of(DAY, f"{first}+dirty") == CodeOf(None, "git did not answer")
    assert differs_from(first, repo.root, repo.baselines)


def test_history_of_which_git_does_not_say_whether_it_is_whole_is_not_taken_to_be(
    repo: Repository, silence: Callable[[str], None]
) -> None:
    repo.save(DAY)
    repo.commit(code="1")
    silence("--is-shallow-repository")
    assert repo.code_of(DAY, None) == CodeOf(None, "git did not answer")


def test_a_baseline_s_file_may_be_renamed_later(repo: Repository) -> None:
    repo.save(DAY)
    first = repo.commit(code="1")
    repo.file.rename(repo.file.with_name("test_other.json"))
    repo.commit(code="2")
    assert repo.code_of(DAY, "unknown+dirty").commit == first


def test_a_commit_that_was_squashed_away_is_found_by_the_baseline_that_it_brought(repo: Repository) -> None:
    repo.commit(code="1")
    repo.save(DAY)
    second = repo.commit(code="2")
    assert repo.code_of(DAY, "1234567890" * 4).commit == second


def test_a_repository_without_a_commit_has_a_baseline_that_is_not_committed(repo: Repository) -> None:
    repo.save(DAY)
    assert repo.code_of(DAY, None) == CodeOf(None, "its baseline is not committed")


def test_without_git_or_outside_of_the_repository_there_is_no_commit(repo: Repository, tmp_path: Path) -> None:
    repo.commit(code="1")
    assert code_of("baseline", tmp_path, tmp_path / "baselines", DAY, None) == CodeOf(None, "")
    assert code_of("baseline", repo.root, tmp_path / "baselines", DAY, None) == CodeOf(None, "")
    assert current_commit(tmp_path, tmp_path / "baselines") is None


def test_a_shallow_clone_does_not_take_its_end_for_the_beginning(repo: Repository, tmp_path: Path) -> None:
    repo.save(DAY)
    first = repo.commit(code="1")
    last = repo.commit(code="2")
    clone = tmp_path / "clone"
    repo.git("clone", "--quiet", "--depth=1", f"file://{repo.root}", str(clone))
    for saved_at in (first, f"{first}+dirty"):
        code = code_of("anchor", clone, clone / "baselines", DAY, saved_at)
        assert code.commit is None
        assert "shallow" in code.told
    assert code_of("anchor", clone, clone / "baselines", DAY, last).commit == last


def test_changed_baselines_are_no_change_of_the_code_and_what_lies_beside_them_is(repo: Repository) -> None:
    first = repo.commit(code="1")
    repo.save(DAY)
    repo.commit()
    assert not differs_from(first, repo.root, repo.baselines)
    assert current_commit(repo.root, repo.baselines) == repo.git("rev-parse", "HEAD")
    beside = repo.baselines / "test_here.py"
    beside.write_text("1")
    repo.commit()
    assert differs_from(first, repo.root, repo.baselines)
    (repo.root / "code.py").write_text("2")
    assert differs_from(first, repo.root, repo.baselines)


def test_baselines_in_the_root_of_the_repository_hide_no_code(repo: Repository) -> None:
    first = repo.commit(code="1")
    repo.file = repo.root / "here" / "test_it.json"
    repo.file.parent.mkdir()
    repo.save(DAY)
    repo.commit()
    assert not differs_from(first, repo.root, repo.root)
    repo.commit(code="2")
    assert differs_from(first, repo.root, repo.root)


def test_git_reads_settings_of_the_environment_and_not_the_repository_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Repository(tmp_path).root
    settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    for name, value in {**settings, "GIT_DIR": "/elsewhere"}.items():
        monkeypatch.setenv(name, value)
    assert run_git(root, "config", "--get", "safe.directory") == "*\n"
    assert top_of(root) == root
