"""The workflow in docs/ that users copy: no YAML library is at hand, so its text is held to what it must be."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from perflab.cli import build_parser
from perflab.plugin.options import OPTIONS

TEXT = (Path(__file__).parents[2] / "docs" / "github-workflow.yml").read_text(encoding="utf-8")
LINES = [
    line.split(" #")[0].rstrip() for line in TEXT.splitlines() if line.strip() and not line.lstrip().startswith("#")
]
COMMANDS = [
    line.strip().removeprefix("run: ") for line in LINES if re.match(r"\s+(run: )?(python|pytest|perflab) ", line)
]


def test_it_has_the_shape_of_yaml() -> None:
    """Spaces in twos, keys and list items; a block of commands is indented below its ``run: |``."""
    depth = 0
    for line in LINES:
        indent = len(line) - len(line.lstrip(" "))
        assert "\t" not in line
        assert indent % 2 == 0, line
        assert indent <= depth + 2 + 2 * line.lstrip().startswith("- "), line
        assert re.fullmatch(r"\s*(- )?[\w-]+:( .+)?", line) or line.strip() in COMMANDS, line
        depth = indent + 2 * line.lstrip().startswith("- ")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("pytest ")])
def test_every_option_of_ours_that_it_gives_to_pytest_exists(command: str) -> None:
    given = {word.split("=")[0] for word in shlex.split(command) if word.startswith("--perf-")}
    assert given - {option.name for option in OPTIONS} == set()


def test_it_gives_perflab_what_perflab_takes() -> None:
    ours = [shlex.split(command.split(" >> ")[0])[1:] for command in COMMANDS if command.startswith("perflab ")]
    assert [build_parser().parse_args(words).command for words in ours] == ["report"]


def test_it_gates_first_and_shows_and_keeps_the_results_of_a_gate_that_failed() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["python", "python", "pytest", "pytest", "pytest", "perflab"]
    assert "-m correctness" in COMMANDS[2]
    assert "--perf-predict" in COMMANDS[3]
    assert "--perf-json=perf.json" in COMMANDS[4]
    assert COMMANDS[5].endswith('>> "$GITHUB_STEP_SUMMARY"')
    assert "path: perf.json" in TEXT
    assert sum(line.strip().startswith("if: always()") for line in LINES) == 2
    assert "fetch-depth: 0" in TEXT


def test_it_may_do_no_more_than_read_and_takes_actions_by_their_major_version() -> None:
    at = LINES.index("permissions:")
    assert LINES[at + 1 : at + 3] == ["  contents: read", "concurrency:"]
    assert TEXT.count("permissions:") == 1
    used = re.findall(r"uses: (\S+)", TEXT)
    assert [action for action in used if not re.fullmatch(r"actions/[\w-]+@v\d+", action)] == []
    assert len(used) == 3
    assert "cancel-in-progress: true" in TEXT


def test_no_command_is_pasted_together_from_names_that_others_chose() -> None:
    assert [command for command in COMMANDS if "${{" in command] == []
