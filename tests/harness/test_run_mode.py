"""What decides whether perf cases are measured: options, ini keys, the marker expression, what else was selected."""

from __future__ import annotations

from typing import Any, cast

import pytest

from perflab.options import OPTIONS
from perflab.running.config.run_mode import RunMode, mode_of, only_cases

CASE, OTHER = cast("list[Any]", ["a perf case", "a plain test"])
ONCE, MEASURE, SKIP = RunMode.ONCE, RunMode.MEASURE, RunMode.SKIP
ASIDE = {
    "adopt",
    "adversarial",
    "disable",
    "skip",
    "prune",
    "prune-case",
    "baselines",
    "device",
    "kernels",
    "arch",
    "timeout",
}
"""Options that have nothing to do with how cases are measured."""


def mode(pytester: pytest.Pytester, *arguments: str, alone: bool = False) -> RunMode:
    """Of a case that was selected beside another test, or alone."""
    return mode_of(pytester.parseconfig(*arguments), [CASE] if alone else [CASE, OTHER], [CASE])


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("", ONCE),
        ("not slow", ONCE),
        ("performance", ONCE),
        ("not perf or slow", ONCE),
        ("slow or not (perf)", ONCE),
        ("perf", MEASURE),
        ("perf or correctness", MEASURE),
        ("perf and not slow", MEASURE),
        ("not slow and perf", MEASURE),
        ("perf(study='x')", MEASURE),
    ],
)
def test_a_marker_expression_that_names_perf_measures(
    pytester: pytest.Pytester, expression: str, wanted: RunMode
) -> None:
    assert mode(pytester, "-m", expression) is wanted


def test_the_command_line_stands_for_the_ini_file_and_cases_alone_are_measured(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = -m 'not perf'\n")
    assert mode(pytester, "-m", "perf") is MEASURE
    assert mode(pytester, alone=True) is MEASURE
    assert mode(pytester, "-m", "not slow", alone=True) is MEASURE


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_that_has_to_do_with_measuring_measures(
    pytester: pytest.Pytester, option: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFLAB_DRY_RUN", "h100")  # as in the process that --perf-dry-run begins anew
    name = option.name.removeprefix("--perf-")
    value = [option.name] if option.flag else [f"{option.name}={(option.choices or ('1',))[0]}"]
    wanted = SKIP if name == "skip" else ONCE if name in ASIDE else MEASURE
    assert mode(pytester, *value) is wanted


@pytest.mark.parametrize(
    ("ini", "arguments", "wanted"),
    [
        ("perf = true", [], MEASURE),
        ("perf_only = yes", [], MEASURE),
        ("perf_predict = true", [], MEASURE),
        ("perf_update = false", [], ONCE),
        ("perf_budget = 20", [], ONCE),
        ("perf = true", ["--perf-disable"], ONCE),
        ("perf = true", ["--perf-skip"], SKIP),
        ("perf_skip = true", [], SKIP),
        ("perf_skip = true", ["-m", "perf"], SKIP),
        ("perf_skip = true", ["--perf-disable"], ONCE),
        ("perf_disable = true", ["-m", "perf"], ONCE),
        ("perf_disable = true", ["--perf-budget=5"], ONCE),
        ("perf_disable = true", ["--perf"], MEASURE),
        ("perf_disable = true", ["--perf-update"], MEASURE),
        ("perf_skip = true", ["--perf-only"], MEASURE),
        ("perf_disable = no", ["-m", "perf"], MEASURE),
    ],
)
def test_an_ini_key_is_what_holds_unless_the_command_line_asks_for_another(
    pytester: pytest.Pytester, ini: str, arguments: list[str], wanted: RunMode
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    assert mode(pytester, *arguments) is wanted


def test_only_cases_may_be_asked_for_by_option_and_by_ini_key(pytester: pytest.Pytester) -> None:
    assert not only_cases(pytester.parseconfig())
    assert only_cases(pytester.parseconfig("--perf-only"))
    pytester.makeini("[pytest]\nperf_only = true\n")
    assert only_cases(pytester.parseconfig())
