"""The reference page and the code say the same."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from pathlib import Path

import pytest

from perflab.cli import COMMANDS, build_parser
from perflab.measure.counts.collectives import BY_KIND
from perflab.measure.counts.events import ON_THE_CPU
from perflab.options import MARKER_ARGUMENTS, OPTIONS
from perflab.plugin import fixtures, hooks
from perflab.results.records import Verdict
from perflab.running.case.perf import Perf
from perflab.tables.view import COUNTS, STANDARD

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without its head."""
    section = re.split(r"^##+ ", PAGE.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_option_stands_there_with_its_ini_key_and_default() -> None:
    documented = [
        (option.strip("`").split("=")[0], ini.strip("`"), default.strip("`"))
        for option, ini, default, _ in rows("## Options and ini keys")
    ]
    assert documented == [(option.name, option.dest, option.default) for option in OPTIONS]


def test_every_marker_argument_stands_there() -> None:
    assert [name.strip("`") for name, _ in rows("## Markers")] == list(MARKER_ARGUMENTS)


def test_every_fixture_stands_there() -> None:
    functions = [one for one in ast.parse(inspect.getsource(fixtures)).body if isinstance(one, ast.FunctionDef)]
    offered = {one.name for one in functions if "fixture" in " ".join(map(ast.unparse, one.decorator_list))}
    assert {name.strip("`") for name, _ in rows("## Fixtures")} == offered


def test_everything_that_perf_can_do_stands_there() -> None:
    documented = {re.match(r"`perf\.?(\w*)", call)[1] or "__call__" for call, _ in rows("### What `perf` can do")}  # type: ignore[index]
    offered = {name for name in vars(Perf) if not name.startswith("_")} | {"__call__"}
    assert documented == offered


def test_every_hook_stands_there() -> None:
    documented = [re.match(r"`(\w+)\((.*)\)`", call) for call, _ in rows("## Hooks")]
    offered = {name: f for name, f in vars(hooks).items() if name.startswith("pytest_")}
    assert {found[1]: found[2] for found in documented if found} == {
        name: ", ".join(inspect.signature(hook).parameters) for name, hook in offered.items()
    }


def test_every_standard_column_stands_there() -> None:
    columns = [cell for heading in ("## Columns", "## Studies") for cell, _ in rows(heading)]
    named = {name for cell in columns for name in re.findall(r"`([\w/]+)`", cell)}
    counted = {name.strip("`") for name, _, _ in rows("## Counts")}
    assert named | counted >= set(STANDARD)
    assert counted == {*COUNTS, f"{ON_THE_CPU}OPERATOR", f"{BY_KIND}KIND:DTYPE"}


def test_every_verdict_stands_there() -> None:
    assert [name.strip("`") for name, _, _ in rows("## Verdicts")] == [str(verdict) for verdict in Verdict]


def test_every_command_stands_there_and_no_other() -> None:
    section = PAGE.split("## Commands\n", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"^### `perflab (.*)`$", section, flags=re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_of_a_command_stands_there(command: str) -> None:
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    taken = []
    for action in commands.choices[command]._actions:
        assert action.help, f"{command}: {action.dest} is not explained by --help"
        if action.dest == "help":
            continue
        value = "|".join(action.choices) if action.choices else action.metavar
        if not action.option_strings:
            taken.append(f"{value}..." if action.nargs == "+" else value)
        elif isinstance(action.nargs, int) and action.nargs > 1:
            taken.append(" ".join([action.option_strings[-1], *[str(value)] * action.nargs]))
        else:
            taken.append(action.option_strings[-1] + (f"={value}" if action.nargs != 0 else ""))
    documented = rows(f"### `perflab {command}`")
    assert [argument.strip("`") for argument, _, _ in documented] == taken
    defaults = [default.strip("`") for _, default, _ in documented]
    text = " ".join(commands.choices[command].format_help().split())
    assert all(f"(default: {default})" in text for default in defaults if default)
