"""Profiles and evidence as a user sees them: the table, the files, and the cause that a failing test names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perflab.measured.baselines import unpacked
from tests.plugin.conftest import Project, begin_repository, commit, one_line

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return x
"""
CASE = """
import pytest
import torch
from conftest import Virtual
from net import Net

def forward(net, x):
    Virtual.now_ns += 1_000_000
    return net(x)

@pytest.mark.perf(MARK)
def test_forward(perf):
    perf(forward, Net(), torch.zeros(4, 16))
"""
BY_HAND = "torch.relu(block(x.neg().neg()))"
LINE = "net.py:12"


@pytest.fixture
def net(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose case calls a module in a file of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (project.pytester.path / "net.py").write_text(NET)
    project.test_file.write_text(CASE.replace("MARK", ""))
    return project


def worse(project: Project) -> None:
    """Six operators more in a call."""
    (project.pytester.path / "net.py").write_text(NET.replace("torch.relu(block(x))", BY_HAND))


def test_a_profile_is_shown_stored_with_the_results_and_written_for_other_tools(net: Project) -> None:
    result = net.run("--perf-profile", "--perf-budget=0.5", "--perf-json=results.json", "--perf-check=off", passed=1)
    result.stdout.re_match_lines(
        [
            r"profile of forward: one call, .* on cpu, mean of \d+ calls",
            r"  category +time +share +instances +FLOPs",
            r"  unexplained .*",
            r"  operator +total +share .*",
        ]
    )
    profile = net.result()["outcome"]["measurement"]["profile"]
    products = [row for row in profile["rows"] if row.get("operator") == "aten::addmm"]
    assert [(row["module"], row["line"], row["instances"]) for row in products] == [("blocks.*", LINE, 3)]
    assert products[0]["flops"] == 3 * 2 * 4 * 16 * 16
    (trace,) = (net.pytester.path / ".perflab" / "profiles").glob("*.trace.json")
    assert json.loads(trace.read_text())["traceEvents"]
    assert trace.with_name(trace.name.replace(".trace.json", ".folded")).read_text()
    report = net.perflab("report", "results.json", "--format=markdown")
    assert "<summary>profile of forward</summary>" in report.stdout.str()


def test_a_marked_case_is_profiled_and_no_other(net: Project) -> None:
    with net.test_file.open("a") as file:
        file.write(
            "\n@pytest.mark.perf(profile=True)\ndef test_marked(perf):\n    perf(forward, Net(), torch.zeros(4, 16))\n"
        )
    result = net.run("--perf-budget=0.5", "--perf-check=off")
    assert "profile of marked" in one_line(result)
    assert "profile of forward" not in one_line(result)


def test_a_case_in_a_fresh_process_is_profiled_as_the_command_asks_and_writes_its_files(net: Project) -> None:
    net.test_file.write_text(CASE.replace("MARK", "fresh_process=True"))
    net.run("--perf-profile", "--perf-budget=0.5", "--perf-json=results.json", "--perf-check=off").assert_outcomes(
        passed=1
    )
    in_fresh = net.result()["outcome"]["measurement"]["profile"]["calls"]
    files = {path.name: path.read_text() for path in (net.pytester.path / ".perflab" / "profiles").iterdir()}
    assert sorted(name.partition(".py_")[2] for name in files) == ["test_forward.folded", "test_forward.trace.json"]
    assert all("aten::addmm" in text for text in files.values())
    net.test_file.write_text(CASE.replace("MARK", ""))
    net.run("--perf-profile", "--perf-budget=0.5", "--perf-json=results.json", "--perf-check=off")
    assert in_fresh == net.result()["outcome"]["measurement"]["profile"]["calls"]  # as many as in this process


def test_a_case_that_does_more_names_operator_module_and_line_by_its_baselines_commit(net: Project) -> None:
    begin_repository(net)
    net.run("--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    commit(net, "baseline")
    worse(net)
    result = net.run("--perf-json=results.json", "--perf-budget=0.5", failed=1)
    assert f"cause: 6 more aten::neg in Net ({LINE})" in one_line(result)
    assert net.result()["outcome"]["explained"]["parts"][0]["more"] == 6
    assert "cause:" not in one_line(net.run("--perf-evidence=off", failed=1))


def stored(project: Project) -> str:
    """The file of its times."""
    (path,) = (project.pytester.path / "baselines").glob("cpu-*/test_story.json")
    return path.read_text()


def test_without_a_commit_the_stored_profile_is_held_against_a_new_one(net: Project) -> None:
    net.run("--perf-update", "--perf-replicates=2", "--perf-budget=2").assert_outcomes(passed=1)
    (line,) = (line for line in stored(net).splitlines() if '"profile"' in line)
    profile = unpacked(json.loads(f"{{{line.rstrip(',')}}}")["profile"])
    assert profile is not None
    assert sum(row.instances for row in profile.rows if row.operator == "aten::addmm") == 3
    worse(net)
    result = net.run("--perf-budget=0.5", "--perf-json=results.json", failed=1)
    assert f"cause: 6 more aten::neg in Net ({LINE})" in one_line(result)
    assert net.result()["outcome"]["explained"]["base"] == "the profile stored with its baseline"


@pytest.mark.parametrize("asked", ["--perf-evidence=off", "--perf-replicates=1", "--perf-budget=0.01"])
def test_no_profile_is_stored_where_nobody_would_use_it_or_it_would_take_long(net: Project, asked: str) -> None:
    net.run("--perf-update", "--perf-replicates=2", "--perf-budget=2", asked).assert_outcomes(passed=1)
    assert '"profile"' not in stored(net)


def test_a_base_that_cannot_be_profiled_says_why_and_hides_no_regression(net: Project) -> None:
    code, needed = net.pytester.path / "net.py", net.pytester.path / "needed.txt"
    code.write_text(f"{NET}\nopen(__file__.replace('net.py', 'needed.txt'))\n")
    begin_repository(net)
    needed.write_text("")
    with (net.pytester.path / ".gitignore").open("a") as file:
        file.write("needed.txt\n")
    net.run("--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    commit(net, "baseline")
    needed.unlink()
    worse(net)
    assert "cause: could not look, because" in one_line(net.run("--perf-budget=0.5", failed=1))


@pytest.mark.parametrize(
    ("asked", "mark", "why"),
    [
        ([], "", "git does not know its baseline's commit here, and no profile is stored with it"),
        (["--perf-settle=off"], "", "--perf-settle=off leaves the baseline's commit out, and no profile is stored"),
        ([], "fresh_process=True", "a case that has a process of its own cannot take turns with its baseline's commit"),
    ],
)
def test_a_failing_case_that_is_not_looked_into_says_why(net: Project, asked: list[str], mark: str, why: str) -> None:
    net.test_file.write_text(CASE.replace("MARK", mark))
    net.run("--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    worse(net)
    assert f"cause: could not look, because {why}" in one_line(net.run("--perf-budget=0.5", *asked, failed=1))


def test_the_fourth_failing_case_says_that_three_were_looked_into(net: Project) -> None:
    cases = "".join(
        f"\n@pytest.mark.perf\ndef test_{name}(perf):\n    perf(forward, Net(), torch.zeros(4, 16))\n"
        for name in ("second", "third", "fourth")
    )
    net.test_file.write_text(CASE.replace("MARK", "") + cases)
    begin_repository(net)
    worse(net)
    result = net.run("--perf-against=HEAD", "--perf-budget=0.5", failed=4)
    failures = one_line(result).partition("short test summary")[0]  # which repeats all of them where CI is set
    assert failures.count("cause: 6 more aten::neg") == 3
    assert "cause: could not look, because 3 cases of this run were, the worst ones, and more would take" in failures
