"""``--perf-against`` from outside: two versions of a small project, compared in turns on a virtual clock."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perflab.base.errors import RivalError
from perflab.results.documents import read_document
from perflab.turns.checkout import other_side
from tests.plugin.conftest import (
    CONFTEST,
    REFUSED,
    SPLITTER,
    Project,
    begin_repository,
    commit,
    git,
    git_in,
    one_line,
    worktrees,
)

TWO_CASES = """
from pathlib import Path

import torch
from conftest import Virtual

here = Path(__file__).parent

def spend(ms, kib=512):
    block = torch.empty(1024 * kib, dtype=torch.uint8)
    Virtual.now_ns += round(1_000_000 * ms)
    return block.numel()

def test_steady(perf):
    perf.requires(memory_bytes=2**20)
    perf(spend, 20)

def test_work(perf):
    cost_ms, kib = (int(n) for n in (here / "cost.txt").read_text().split())
    assert perf(spend, cost_ms, kib) > 0
"""


DECIDED_BY_MEMORY = "--perf-against=HEAD", "--perf-evidence=off"
"""Options of stories whose sides differ in memory, which is exact: the fewest pairs decide."""


@pytest.fixture
def repository(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The small project with two cases, in a git repository with one commit, tagged ``before``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project.test_file.write_text(TWO_CASES)
    begin_repository(project)
    git(project, "tag", "before")
    return project


COMPUTES = """
import os
from pathlib import Path

import torch
from conftest import Virtual

torch.set_num_threads(1)
cost_ms, scale = (float(n) for n in Path(__file__).with_name("cost.txt").read_text().split())

def test_step(perf):
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)  # nobody seeds them

    def step():
        Virtual.now_ns += round(1_000_000 * cost_ms)
        model.zero_grad()
        loss = model(x).square().sum()
        (loss * scale).backward()
        return loss.detach()

    perf(step)

def test_random(perf):
    def work():
        Virtual.now_ns += round(1_000_000 * cost_ms)
        return torch.rand(3) + int.from_bytes(os.urandom(2), "big")

    perf(work)
"""


def test_a_faster_version_that_computes_a_wrong_gradient_says_so(repository: Project) -> None:
    repository.test_file.write_text(COMPUTES)
    repository.cost(ms=100, kib=1)
    commit(repository, "a step")
    repository.cost(ms=80, kib=2)
    result = repository.run("--perf-against=HEAD", "--perf-evidence=off", passed=2)
    result.stdout.re_match_lines(
        [r"step .* improved", r"\s+outputs differ: gradients by 5\.0e-01 of the largest", r"random .* improved"]
    )
    assert result.stdout.str().count("outputs differ") == 1


def test_a_slower_change_fails_its_test_and_says_by_how_much_against_what_also_if_it_was_moved(
    repository: Project,
) -> None:
    path = repository.pytester.path
    other = TWO_CASES.replace("test_work", "test_in_a_file").replace("test_steady", "test_constant")
    (path / "test_old_place.py").write_text(other)
    commit(repository, "another module")
    git(repository, "tag", "--force", "before")
    (path / "test_old_place.py").rename(path / "test_new_place.py")
    repository.test_file.write_text(TWO_CASES.replace("test_work", "test_renamed"))
    repository.cost(ms=104)
    result = repository.run("--perf-against=before", "--perf-json=out.json", ret=1, passed=2, failed=2)
    result.stdout.re_match_lines(
        [
            r"renamed is slower than in before \([0-9a-f]{7}\)",
            r"\s+before\s+now\s+change\s+95 % interval\s+limit",
            r"latency\s+100 ms\s+104 ms\s+\+4\.0%\s+\+\d.*…\+\d.*%\s+\+2%",
            r"peak\s+512 KiB\s+512 KiB\s+same\s+exact\s+exact",
            r"7 interleaved pairs of fresh processes; base against base: 0\.0%",
            r"head: [0-9a-f]{7} with \d+ uncommitted changes? · base: before \([0-9a-f]{7}\)",
            r"steady .* 0\.0% .* ok",
            r"renamed .* \+4\.0% .* REGRESSED",
            r"2 ok · 2 regressed",
        ]
    )
    said = one_line(result)
    assert "compared with test_story.py::test_work, moved" in said
    assert "compared with test_old_place.py::test_in_a_file, moved" in said
    assert "only in the base" not in said
    assert "Traceback" not in said
    assert "--perf-update" not in said, "there is nothing to accept: no baseline is involved"
    assert not (path / "baselines").exists()
    by_case = {one["case"]: one["outcome"]["paired"] for one in repository.results("out.json")}
    assert by_case["test_story.py::test_renamed"]["confirm"] == [1.04] * 4
    assert by_case["test_new_place.py::test_in_a_file"]["confirm"] == [1.04] * 4
    assert by_case["test_story.py::test_steady"]["screen"] == [1.0] * 2
    assert by_case["test_story.py::test_steady"]["detectable"] < 1.05


def test_the_same_code_passes_and_the_worktree_is_kept_for_the_next_time(repository: Project) -> None:
    result = repository.run("--perf-against=before", "-k", "work", passed=1, deselected=1)
    result.stdout.re_match_lines([r"head: [0-9a-f]{7} .*· base: before.*", r"work .* 0\.0% .* ok", "1 ok"])
    assert worktrees(repository) == 1
    (place,) = (place for place in _shelf(repository).iterdir() if place.is_dir())
    (place / "cost.txt").write_text("300 512")  # somebody meddles with the kept worktree
    repository.run("--perf-against=main", "-k", "work").stdout.re_match_lines([r"work .* 0\.0% .* ok"])
    assert worktrees(repository) == 1


def _shelf(project: Project) -> Path:
    (shelf,) = (Path(os.environ["XDG_CACHE_HOME"]) / "perflab" / "trees").iterdir()
    return shelf


SPENDS = (
    TWO_CASES.partition("def test_steady")[0].replace(
        "    return",
        "    with open(os.environ['SPENT'], 'a') as file:\n        file.write(f'{ms / 1000}\\n')\n    return",
    )
    + """
import os

MS, KIB = (int(n) for n in (here / "cost.txt").read_text().split())

def test_grows(perf):
    perf(spend, 10_000 + KIB, KIB)

def test_grows_too(perf):
    perf(spend, 10_000, KIB)

def test_slower(perf):
    perf(spend, MS)
"""
)
TIME_IS_WHAT_IS_SPENT = """
import os
from perflab.settings.settings import TotalBudget

def left_s(self):
    spent_s = sum(map(float, Path(os.environ["SPENT"]).read_text().split()))
    return None if self._total_s is None else self._total_s - spent_s

TotalBudget.left_s = left_s
"""


@pytest.fixture
def spending(repository: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Two cases that need more memory, and one that is a little slower. Time is what they spend, in all processes."""
    spent = tmp_path / "spent.txt"
    spent.touch()
    monkeypatch.setenv("SPENT", str(spent))
    repository.test_file.write_text(SPENDS)
    repository.add(TIME_IS_WHAT_IS_SPENT, "conftest.py")
    repository.cost(ms=10_000)
    commit(repository, "spends")
    repository.cost(ms=10_300, kib=1024)
    return repository


def pairs_of(project: Project) -> dict[str, int]:
    """How many each case took part in."""
    taken = {one["case"].partition("::test_")[2]: one["outcome"]["paired"] for one in project.results("out.json")}
    return {case: len(paired["screen"]) + len(paired.get("confirm", [])) for case, paired in taken.items()}


def test_what_fails_already_is_not_measured_on_and_its_cause_is_looked_for_within_the_budget(spending: Project) -> None:
    options = ["--perf-against=HEAD", "--perf-budget=500", "--perf-total-budget=2500", "--perf-json=out.json"]
    result = spending.run(*options)
    assert sum(map(float, Path(os.environ["SPENT"]).read_text().split())) <= 2500
    pairs = pairs_of(spending)
    assert (pairs["grows"], pairs["grows_too"]) == (2, 2)
    assert 2 < pairs["slower"] < 7, "it has the time that the others do not need, but for what their causes take"
    result.stdout.fnmatch_lines(["why: it fails already by what is exact, so its time was not measured on"])
    result.stdout.fnmatch_lines(["--perf-total-budget ended the comparison before all suspects were confirmed"])
    failures = result.stdout.str().partition("short test summary info")[0]  # which repeats them where CI is set
    assert failures.count("at the peak: +512 KiB larger blocks of aten::empty") == 2


def test_with_x_the_comparison_ends_with_the_first_certain_failure(spending: Project) -> None:
    result = spending.run("--perf-against=HEAD", "--perf-budget=500", "--perf-json=out.json", "-x", failed=1)
    assert pairs_of(spending) == {"grows": 2}
    result.stdout.fnmatch_lines(["grows needs more memory than in HEAD*", "*stopping after 1 failures*"])


def test_cases_of_one_side_and_ends_other_than_a_number_are_told_apart(repository: Project) -> None:
    source = repository.add("""
def test_gone(perf):
    perf(spend, 10)

def test_broken_there(perf):
    perf(spend, 10)
    assert False, "was broken"

def test_broken_here(perf):
    perf(spend, 10)

def test_skipped(perf):
    import pytest
    pytest.skip("not on this machine")
""")
    another = repository.test_file.with_name("test_another.py")
    another.write_text(TWO_CASES.replace("test_steady", "test_first").replace("test_work", "test_last"))
    commit(repository, "more cases")
    another.write_text(another.read_text().replace("test_last(perf):", "test_other(perf):\n    assert perf"))
    new = TWO_CASES.replace("test_steady", "test_little").replace("test_work", "test_much")
    another.with_name("test_brand_new.py").write_text(new)
    changed = source.replace("test_gone(perf):\n    perf(spend, 10", "test_new(perf):\n    perf(spend, 11").replace(
        'assert False, "was broken"', "pass"
    )
    changed = changed.replace("def test_broken_here(perf):", "def test_broken_here(perf):\n    assert 1 == 2")
    repository.test_file.write_text(changed)
    result = repository.run("--perf-against=HEAD", "--perf-json=perf.json", passed=8, failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*assert 1 == 2",
            "*only in the base: test_another.py::test_last, test_story.py::test_gone",
            "first* ok",
            "other * new",
            "little * new",
            "much * new",
            "steady* ok",
            "new * new",
            "broken_there * incomparable",
            "  failed in HEAD (*",
            "broken_here * FAILED",
            "1 skipped: not on this machine (skipped)",
            "3 ok · 4 new · 1 incomparable · 1 skipped · 1 failed",
        ]
    )
    results = read_document(repository.pytester.path / "perf.json").results
    assert {one.way for one in results} == {"A/B"}, "also of those that came to nothing"
    alone = repository.run("--perf-against=HEAD", "test_brand_new.py", passed=2)
    alone.stdout.fnmatch_lines(["little * new", "much * new", "2 new"])


def test_a_step_that_gained_a_phase_and_a_side_that_dies_cost_no_other_case_and_hide_no_assertion(
    repository: Project,
) -> None:
    source = """
import os
import pytest
import torch
from conftest import Virtual

def spend(ms):
    Virtual.now_ns += 1_000_000 * ms

def test_step(perf):
    perf.step(forward=lambda: spend(40))

@pytest.mark.perf(study="ends")
def test_dies_there(perf):
    perf(os._exit, 3)

@pytest.mark.perf(study="ends", columns="loss")
def test_last(perf):
    perf(spend, 20)
    perf.note(loss=2.5)

def test_fails_here(perf):
    perf(os._exit, 3)

def test_fails_after(perf):
    perf(os._exit, 4)
"""
    commit(repository, "a step", source)
    longer = source.replace("lambda: spend(40))", "lambda: spend(40), optimizer=lambda: spend(10))")
    now = longer.replace("perf(os._exit, 3)", "perf(spend, 5)", 1)
    now = now.replace("def test_fails_here(perf):", "def test_fails_here(perf):\n    assert 1 == 2")
    repository.test_file.write_text(now.replace("perf(os._exit, 4)", "perf(spend, 5)\n    assert 3 == 4"))
    result = repository.run("--perf-against=HEAD", "--perf-check=off", passed=3, failed=2)
    result.stdout.fnmatch_lines(["*assert 1 == 2", "*assert 3 == 4"])
    result.stdout.fnmatch_lines(["step * +25.0% * unchecked", "dies_there * incomparable", "last * 0.0% * unchecked"])
    result.stdout.fnmatch_lines(["study: ends", "case * loss", "dies_there  incomparable: *", "last * 2.5"])


def test_a_package_that_is_named_by_pyargs_is_compared(repository: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    path = repository.pytester.path
    (path / "ours_of_perf").mkdir()
    (path / "ours_of_perf" / "__init__.py").touch()
    (path / "ours_of_perf" / "test_in.py").write_text(
        TWO_CASES.partition("def test_steady")[0] + "def test_packed(perf):\n    perf(spend, 20, 512)\n"
    )
    commit(repository, "a package of tests")
    packed = path / "ours_of_perf" / "test_in.py"
    packed.write_text(packed.read_text().replace("20, 512", "20, 600"))
    monkeypatch.setenv("PYTHONPATH", f"{path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    result = repository.run(*DECIDED_BY_MEMORY, "--pyargs", "ours_of_perf.test_in", failed=1)
    result.stdout.re_match_lines([r"peak\s+512 KiB\s+600 KiB .*", r"packed .* REGRESSED"])


NOTHING = """
import functools
from perflab.measure.clocks import clock
import time

clock.read_ns, clock.read_processor_ns = time.perf_counter_ns, time.thread_time_ns
clock.read_all_processors_ns = time.process_time_ns

@functools.lru_cache
def work(n):
    return sum(range(n))

def test_work(perf):
    perf(work, 200_000)
"""


def test_a_call_that_does_no_work_any_more_is_no_improvement(repository: Project) -> None:
    commit(repository, "works", NOTHING.replace("@functools.lru_cache\n", ""))
    repository.test_file.write_text(NOTHING)
    result = repository.run("--perf-against=HEAD", "--perf-budget=1", failed=1)
    result.stdout.fnmatch_lines(["*the measured callable does no work, it is as fast as an empty one*"])


def test_text_that_utf8_cannot_hold_is_escaped_and_an_id_that_no_other_process_has_is_no_success(
    repository: Project,
) -> None:
    repository.add("""
import os, pytest

@pytest.mark.parametrize("number", [os.getpid()])
def test_fleeting(perf, number):
    perf(spend, 5)

def test_half(perf):
    perf.note(odd="\\udc81")
    perf.work(**{"unit \\udc83": 3})
    perf(spend, 5)

def test_half_failure(perf):
    perf(spend, 5)
    pytest.fail("said \\udcff")
""")
    commit(repository, "halves")
    options = ["--perf-against=HEAD", "-k", "half or fleeting", "--perf-json=out.json"]
    result = repository.run(*options, passed=1, failed=2, deselected=2)
    result.stdout.fnmatch_lines(
        ["*it was not collected again in a fresh process of this side, so nothing was compared", "*-> give it an id *"]
    )
    assert "said \\udcff" in result.stdout.str()
    (one,) = (one for one in repository.results("out.json") if one["case"].endswith("test_half"))
    assert one["outcome"]["work"] == {"unit \\udc83": 3.0}


def test_strict_wants_every_case_to_be_compared(repository: Project) -> None:
    repository.test_file.write_text(TWO_CASES.replace("test_steady", "test_new"))
    result = repository.run("--perf-against=HEAD", "--perf-check=strict", "-k", "new", failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*new could not be judged (new), and --perf-check fails such cases*"])


def test_a_part_of_a_split_run_is_compared_with_the_same_cases_of_the_base(repository: Project) -> None:
    path = repository.pytester.path
    repository.add(SPLITTER, "conftest.py")
    commit(
        repository,
        "a case more",
        TWO_CASES.replace("def test_steady", "def test_first(perf):\n    perf(spend, 20)\n\ndef test_steady"),
    )
    (path / "test_a_new_one.py").write_text(TWO_CASES)
    repository.cost(ms=100, kib=600)
    result = repository.run(*DECIDED_BY_MEMORY, "--part=2", passed=1, failed=1)  # of five, where the base has three
    result.stdout.re_match_lines([r"steady .* ok", r"work .* 600 KiB .* REGRESSED", "1 ok · 1 regressed"])
    result.stdout.no_fnmatch_line("*only in the base*")


@pytest.mark.parametrize(
    "words", [["--perf-against=before", "--dist=load", "--tx=2*popen"], ["--override-ini=perf_against=before", "-n2"]]
)
def test_workers_are_not_used_and_change_nothing(repository: Project, words: list[str]) -> None:
    pytest.importorskip("xdist")
    result = repository.run("-p", "xdist.plugin", *words, "-k", "steady", passed=1, deselected=1)
    result.stdout.re_match_lines([r"steady .* ok", "1 ok"])
    # The worker's own announcements; its name alone is also in the path of a test that a worker runs.
    result.stdout.no_re_match_line(r"(\[gw\d\]|created: \d+/\d+ worker|\d+ workers? \[)")


@pytest.mark.parametrize(("chosen", "untimed"), [([], 2), (["-m", "not perf"], 0), (["--perf-skip"], 0)])
def test_the_ini_key_leaves_a_run_of_the_whole_project_its_workers(
    repository: Project, chosen: list[str], untimed: int
) -> None:
    pytest.importorskip("xdist")
    worker = "import os\n\ndef test_plain():\n    assert os.environ['PYTEST_XDIST_WORKER']\n"
    repository.pytester.makepyfile(test_plain=worker)
    words = ["-p", "xdist.plugin", "-n2", "--override-ini=perf_against=before", *chosen]
    result = repository.pytest(*words)
    assert result.parseoutcomes()["passed"] == 1 + untimed
    assert result.ret == 0
    assert ("2 cases ran once, untimed" in result.stdout.str()) == bool(untimed)


def test_workers_that_turn_out_to_have_perf_cases_alone_name_what_has_them_compared(repository: Project) -> None:
    pytest.importorskip("xdist")
    words = ["-p", "xdist.plugin", "-n2", "--override-ini=perf_against=before", "test_story.py"]
    result = repository.pytest(*words)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*perf_against compares one case at a time, and*workers run several", "*-> add -m perf, or -n0"]
    )


def test_another_checkout_can_be_named_by_its_path(repository: Project, tmp_path: Path) -> None:
    git(repository, "clone", "--quiet", ".", str(tmp_path / "other"))
    (tmp_path / "other" / "cost.txt").write_text("100 500")
    against = f"--perf-against={tmp_path / 'other'}"
    result = repository.run(against, "-k", "work", "--perf-evidence=off", failed=1, deselected=1)
    result.stdout.re_match_lines([r"peak\s+500 KiB\s+512 KiB .*"])
    assert worktrees(repository) == 0


def test_an_installed_version_is_measured_by_this_sides_tests(repository: Project, tmp_path: Path) -> None:
    path = repository.pytester.path
    (path / "library.py").write_text("KIB = 600\n")
    measured = TWO_CASES.replace("import torch", "import library\nimport torch")
    repository.test_file.write_text(measured.replace("perf(spend, 20)", "perf(spend, 20, library.KIB)"))
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "library.py").write_text("KIB = 500\n")
    against = f"--perf-against={installed}"
    result = repository.run(against, "-k", "steady", "--perf-evidence=off", failed=1, deselected=1)
    result.stdout.re_match_lines([r"peak\s+500 KiB\s+600 KiB .*"])


@pytest.mark.parametrize(
    ("words", "said", "remedy"),
    [
        (["--perf-against=no-such"], "*=no-such is neither a commit of this repository nor a directory*", "  -> *"),
        (["--perf-against=."], "*--perf-against=. is the working tree itself*", "  -> *"),
        (["--perf-against=empty"], "*contains neither these tests nor importable packages*", "  -> *"),
        (["--perf-against="], "*--perf-against is empty*", "*is the variable set?"),
        (["--perf-against=HEAD", "--perf-update"], "*neither uses nor saves baselines*", "  -> *"),
    ],
    ids=["unknown", "itself", "without packages", "no name", "saving"],
)
def test_what_cannot_be_compared_with_is_refused_at_once(
    repository: Project, words: list[str], said: str, remedy: str
) -> None:
    (repository.pytester.path / "empty").mkdir()
    repository.run(*words, ret=REFUSED).stderr.fnmatch_lines([said, remedy])


def test_a_close_name_is_suggested(repository: Project) -> None:
    git(repository, "update-ref", "refs/remotes/origin/feature", "HEAD")
    repository.run("--perf-against=feature").stderr.fnmatch_lines(["*-> did you mean origin/feature?"])


def test_a_base_that_does_not_import_says_why(repository: Project) -> None:
    good = repository.test_file.read_text()
    commit(repository, "broken", "import no_such_module\n" + good)
    repository.test_file.write_text(good)
    result = repository.run("--perf-against=HEAD", ret=REFUSED)
    result.stderr.fnmatch_lines(["*HEAD (*: its process ended*", "*No module named 'no_such_module'*", "  -> *"])


LIBRARY_IN_A_SUBMODULE = """
import sys
from pathlib import Path

import torch
from conftest import Virtual

sys.path.insert(0, str(Path(__file__).with_name("vendor") / "library"))
import library

def test_work(perf):
    def work():
        Virtual.now_ns += 100_000_000
        return torch.empty(1024 * library.KIB, dtype=torch.uint8).numel()

    perf(work)
"""


def with_submodules(repository: Project, tmp_path: Path) -> Path:
    """Give the project a library as a submodule, which has one itself; the library's folder in the project."""
    numbers, library = tmp_path / "numbers", tmp_path / "library"
    for folder, file, text in (
        (numbers, "numbers_of.py", "KIB = 500\n"),
        (library, "library.py", "from inner.numbers_of import KIB\n"),
    ):
        folder.mkdir()
        git_in(folder, "init", "--quiet", "--initial-branch=main")
        (folder / file).write_text(text)
        if folder is library:
            add_submodule(library, numbers, "inner")
        commit_in(folder, "first")
    add_submodule(repository.pytester.path, library, "vendor/library")
    commit(repository, "a library", LIBRARY_IN_A_SUBMODULE)
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive")
    shutil.rmtree(numbers)
    shutil.rmtree(library)  # nothing can be fetched
    return repository.pytester.path / "vendor" / "library"


def add_submodule(folder: Path, source: Path, path: str) -> None:
    git_in(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source), path)


def commit_in(folder: Path, message: str) -> None:
    git_in(folder, "add", "--all")
    git_in(folder, "commit", "--quiet", "--message", message)


def test_a_base_has_the_submodules_that_it_records_also_where_this_side_has_them_no_more(
    repository: Project, tmp_path: Path
) -> None:
    library = with_submodules(repository, tmp_path)
    (library / "inner" / "numbers_of.py").write_text("KIB = 600\n")
    for folder in (library / "inner", library):
        commit_in(folder, "more")
    result = repository.run(*DECIDED_BY_MEMORY, failed=1)
    result.stdout.re_match_lines([r"peak\s+500 KiB\s+600 KiB .*", r"head: [0-9a-f]{7} with 1 uncommitted change ·.*"])
    (tree,) = (tmp_path / "cache").glob("perflab/trees/*/*/vendor/library")
    (tree / "library.py").write_text("KIB = 1\n")  # a trial left a change in it
    git(repository, "rm", "--quiet", "--force", "vendor/library")
    (library / "inner").mkdir(parents=True)
    (library / "inner" / "numbers_of.py").write_text("KIB = 700\n")
    (library / "library.py").write_text("from inner.numbers_of import KIB\n")
    result = repository.run(*DECIDED_BY_MEMORY, failed=1)
    result.stdout.re_match_lines([r"peak\s+500 KiB\s+700 KiB .*"])
    with pytest.raises(KeyboardInterrupt), other_side("HEAD", repository.pytester.path, [], print):
        raise KeyboardInterrupt
    kept = repository.pytester.path / ".git" / "modules" / "vendor" / "library"
    assert not any(list((one / "worktrees").glob("*")) for one in (kept, kept / "modules" / "inner"))


def test_a_base_loses_a_submodule_that_this_side_has_checked_out_no_more(repository: Project, tmp_path: Path) -> None:
    with_submodules(repository, tmp_path)
    for has_library in (True, False):
        with other_side("HEAD", repository.pytester.path, [], print):
            (place,) = (tmp_path / "cache").glob("perflab/trees/*/*/vendor/library")
            assert (place / "library.py").exists() is has_library
        git(repository, "submodule", "--quiet", "deinit", "--force", "vendor/library")
    kept = repository.pytester.path / ".git" / "modules" / "vendor" / "library"
    assert not any(list((one / "worktrees").glob("*")) for one in (kept, kept / "modules" / "inner"))


def test_a_submodule_that_this_side_has_not_checked_out_is_left_out_and_a_missing_commit_names_the_remedy(
    repository: Project, tmp_path: Path
) -> None:
    library = with_submodules(repository, tmp_path)
    head = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "update-index", "--cacheinfo", f"160000,{head},vendor/library")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{head},nowhere")
    git(repository, "commit", "--quiet", "--message", "commits that nobody has pushed")
    said = repository.run("--perf-against=HEAD", ret=REFUSED).stderr
    said.fnmatch_lines([f"*the submodule nowhere of * is at {head[:12]}, and no*", "*--perf-against=PATH*"])
    (repository.pytester.path / "nowhere").mkdir()
    said = repository.run("--perf-against=HEAD", ret=REFUSED).stderr
    said.fnmatch_lines([f"*vendor/library of * is at {head[:12]}, and no*", f"*fetch it: git -C {library} fetch *"])
    git(repository, "submodule", "--quiet", "deinit", "--force", "vendor/library")
    repository.test_file.write_text(TWO_CASES)
    commit(repository, "a library that is not needed")
    repository.run("--perf-against=HEAD", "-k", "work", passed=1, deselected=1)


@pytest.mark.parametrize("through", ["its own path", "a symbolic link"])
def test_a_base_that_imports_this_sides_code_is_refused(repository: Project, tmp_path: Path, through: str) -> None:
    path = repository.pytester.path
    (path / "hidden").mkdir()
    (path / "hidden" / "library.py").write_text("COST_MS = 100\n")
    (tmp_path / "link").symlink_to(path)
    place = (tmp_path / "link" if through == "a symbolic link" else path) / "hidden"
    commit(
        repository, "a hard-wired path", f"import sys\nsys.path.insert(0, {str(place)!r})\nimport library\n" + TWO_CASES
    )
    result = repository.run("--perf-against=HEAD", ret=REFUSED)
    result.stderr.fnmatch_lines(["*imported this side's code: library (*", "  -> *"])


def test_an_installed_copy_of_the_project_is_refused_since_both_sides_would_run_it(
    repository: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = repository.pytester.path
    (path / "src").mkdir()
    (path / "src" / "library.py").write_text("COST_MS = 100\n")
    commit(repository, "a src layout", "import library\n" + TWO_CASES)
    (path / "src" / "library.py").write_text("COST_MS = 200\n")
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "library.py").write_text("COST_MS = 100\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    result = repository.run("--perf-against=HEAD", "-k", "steady", ret=REFUSED)
    result.stderr.fnmatch_lines(["*runs installed copies of this project's code: library (*", "*--editable*"])


@pytest.mark.parametrize("found", ["no .git", "nothing", "a repository of its own", "a lock of git's", "half"])
def test_a_cache_inside_of_the_repository_never_has_git_act_on_the_repository_itself(
    repository: Project, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    path = repository.pytester.path
    monkeypatch.setenv("XDG_CACHE_HOME", str(path / ".cache"))
    repository.cost(ms=104)
    commit(repository, "slower")
    head = git(repository, "rev-parse", "main")
    repository.cost(ms=200)  # uncommitted work

    def checked_out() -> tuple[Path, str]:
        with other_side("before", path, [], print) as tree:
            return tree.root, (tree.root / "cost.txt").read_text()

    place, text = checked_out()
    assert text == "100 512"
    (place / "test_story.py").unlink()
    if found == "a lock of git's":
        git(repository, "worktree", "lock", str(place))
    if found in ("nothing", "a lock of git's"):
        shutil.rmtree(place)
    elif found != "half":
        (place / ".git").unlink()
    if found == "a repository of its own":
        subprocess.run(["git", "init", "--quiet", str(place)], check=True)
    assert checked_out() == (place, "100 512")
    assert (place / "test_story.py").exists()
    assert worktrees(repository) == 1
    assert git(repository, "rev-parse", "HEAD", "main") == 2 * head
    assert (path / "cost.txt").read_text() == "200 512"


def test_the_users_own_worktrees_stay_known_to_git_while_their_drive_is_away(
    repository: Project, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "--quiet", "--detach", str(tmp_path / "mine"))
    (tmp_path / "mine").rename(tmp_path / "away")
    with other_side("before", repository.pytester.path, [], print):
        assert str(tmp_path / "mine") in git(repository, "worktree", "list")


def test_a_folder_of_the_cache_that_perflab_has_not_marked_is_left_alone(repository: Project) -> None:
    with other_side("before", repository.pytester.path, [], print) as tree:
        place = tree.root
    (place.parent / "CACHEDIR.TAG").unlink()
    (place / "mine.txt").write_text("precious")
    with (
        pytest.raises(RivalError, match=f"{place.parent} was not made by perflab: it holds no CACHEDIR.TAG") as caught,
        other_side("before", repository.pytester.path, [], print),
    ):
        raise AssertionError("nothing is checked out")
    assert caught.value.remedy == "move it away, or set XDG_CACHE_HOME to another directory"
    assert (place / "mine.txt").read_text() == "precious"


def test_without_git_a_commit_cannot_be_had(repository: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    if shutil.which("git") is not None:
        pytest.skip("git lies beside this Python")
    repository.run("--perf-against=HEAD").stderr.fnmatch_lines(["*no commit: git is not installed*"])


def test_a_repository_that_git_refuses_is_told_in_gits_words(repository: Project) -> None:
    (repository.pytester.path / ".git" / "config").write_text("[core")
    result = repository.run("--perf-against=HEAD", ret=REFUSED)
    result.stderr.fnmatch_lines(["*no such directory, and no commit: git rev-parse failed: *bad config*", "  -> *"])


NOTED = """
import os

note = Path(__file__).with_name("session.txt")
if not note.exists():
    note.write_text(str(os.getpid()))
"""
"""What a conftest adds: the first process that runs in its folder, the session's own, is noted there."""


def comparing(repository: Project, source: str) -> subprocess.Popen[bytes]:
    """A session that compares these tests with their commit, in a process of its own."""
    repository.add(NOTED, "conftest.py")
    commit(repository, "to be ended from outside", source)
    command = [repository.python, "-m", "pytest", "-m", "perf", "--perf-against=HEAD"]
    return subprocess.Popen(command, cwd=repository.pytester.path, start_new_session=True, stdout=subprocess.PIPE)


def send(repository: Project, number: signal.Signals) -> None:
    """Send a signal to the session's own process, whatever stands for it."""
    os.kill(int((repository.pytester.path / "session.txt").read_text()), number)


def test_ctrl_c_leaves_no_worktree_and_no_process_behind(repository: Project, tmp_path: Path) -> None:
    # Says so when a side has begun to measure, and then takes for ever.
    source = TWO_CASES.replace(
        "    perf(spend, 20)", "    (here / f'begun-{os.getpid()}').touch()\n    time.sleep(600)"
    )
    running = comparing(repository, "import os, time\n" + source)
    begun = _wait_for(lambda: list(tmp_path.rglob("begun-*")) + list(repository.pytester.path.rglob("begun-*")))
    assert worktrees(repository) == 1
    children = [int(path.name.removeprefix("begun-")) for path in begun]
    send(repository, signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, output
    assert worktrees(repository) == 0
    assert not [place for place in _shelf(repository).iterdir() if place.is_dir()]
    for child in children:
        assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]


THIRD_PROCESS_ENDLESS = TWO_CASES.replace(
    "    perf(spend, 20)",
    "    (here / f'begun-{os.getpid()}').touch()\n"
    "    if len(list(here.glob('begun-*'))) > 1:\n        time.sleep(600)\n    perf(spend, 20)",
)
"""Each side's first process measures; the second ones take for ever."""


def test_a_killed_comparison_keeps_what_was_compared_and_leaves_no_process_behind(
    repository: Project, tmp_path: Path
) -> None:
    running = comparing(repository, "import os, time\n" + THIRD_PROCESS_ENDLESS)

    def second_pair() -> list[Path]:
        begun = {*tmp_path.rglob("begun-*"), *repository.pytester.path.rglob("begun-*")}
        return sorted(begun) if len(begun) >= 3 else []

    children = [int(path.name.removeprefix("begun-")) for path in _wait_for(second_pair)]
    send(repository, signal.SIGKILL)
    running.communicate(timeout=60)
    _wait_for(lambda: [Path("gone")] * all(_is_gone(child) for child in children), tries=20)
    (journal,) = (repository.pytester.path / ".perflab" / "runs").glob("*.jsonl")
    kept = {one["case"]: one for one in map(json.loads, journal.read_text().splitlines())}
    assert set(kept) == {"test_story.py::test_steady", "test_story.py::test_work"}
    assert all(one["outcome"]["paired"]["screen"] == [1.0] for one in kept.values())


def test_a_side_that_hangs_is_ended_and_costs_no_other_case(repository: Project) -> None:
    source = TWO_CASES.replace("    perf(spend, 20)", "    HANG\n    perf(spend, 20)")
    commit(repository, "hangs there", "import time\n" + source.replace("HANG", "time.sleep(600)"))
    repository.test_file.write_text(source.replace("HANG", "pass"))
    repository.run("--perf-against=HEAD", "--perf-timeout=5", passed=2).stdout.re_match_lines(
        [r"steady .* incomparable", r".*process hung and was stopped: no answer for 5\.00 s.*", r"work .* 0\.0% .* ok"]
    )


def _is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait_for(found: object, tries: int = 1200) -> list[Path]:
    assert callable(found)
    for _ in range(tries):
        paths = found()
        if paths:
            assert isinstance(paths, list)
            return paths
        time.sleep(0.1)
    raise AssertionError("it did not come to that")


@pytest.mark.parametrize("sets", ["", "os.environ['KMP_OWN'] = str(os.getpid())"], ids=["alike", "apart"])
def test_variables_that_a_conftest_sets_for_pytorch_hold_in_both_sides(repository: Project, sets: str) -> None:
    # The sides are Python's own processes: a warm one cannot heed the variable.
    setting = f"import os\nos.environ['OMP_NUM_THREADS'] = '1'\n{sets}\n"
    (repository.pytester.path / "conftest.py").write_text(setting + CONFTEST)
    case = "def test_threads(perf):\n    assert torch.get_num_threads() == 1\n"
    size = "    perf(spend, 20, int((here / 'cost.txt').read_text().split()[1]))\n"
    commit(repository, "threads", TWO_CASES.partition("def test_steady")[0] + case + size)
    repository.cost(ms=20, kib=1024)
    result = repository.run(*DECIDED_BY_MEMORY, failed=1)
    result.stdout.re_match_lines([r"peak +512 KiB +1\.00 MiB.*"])
    told = "processes were started apart, not forked: the tests set KMP_OWN, which PyTorch may read"
    assert (told in one_line(result)) == bool(sets)
