"""Who does not ask pays nothing: next to no modules, no files, no output."""

from __future__ import annotations

from pathlib import Path

import pytest

LIGHT = [
    "perflab",
    "perflab.noting",
    "perflab.options",
    "perflab.plugin",
    "perflab.plugin.fixtures",
    "perflab.plugin.hooks",
]
"""All that a run without perf cases loads. Each costs half a millisecond: one more needs a reason."""

CONFTEST = """
import os, sys
from pathlib import Path

WATCHED = ("perflab", "msgspec", "filelock", "torch", "triton", "numpy", "rich")

def pytest_unconfigure():
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in WATCHED)
    who = os.environ.get("PYTEST_XDIST_WORKER", "main")
    Path(__file__).with_name(f"loaded-{who}.txt").write_text("\\n".join(loaded))
"""
PLAIN = "def test_plain():\n    pass\n"
MEASURED = "def test_measured(perf):\n    perf(sum, range(100_000))\n"


@pytest.fixture(autouse=True)
def only_perflab(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other plugins may load what they like."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p perflab.plugin")
    pytester.makeconftest(CONFTEST)


def loaded_in(folder: Path, who: str = "main") -> list[str]:
    """What of ours, and of what we use, was loaded in the end by a process of the last run."""
    return (folder / f"loaded-{who}.txt").read_text().split()


@pytest.mark.parametrize("argument", ["-v", "--collect-only", "--help", "--fixtures", "--markers"])
def test_a_run_that_has_nothing_of_ours_loads_next_to_nothing(pytester: pytest.Pytester, argument: str) -> None:
    pytester.makepyfile(PLAIN)
    assert pytester.runpytest_subprocess(argument).ret == 0
    assert loaded_in(pytester.path) == LIGHT


def test_so_does_a_run_that_fails_which_may_be_for_an_error_of_ours(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_wrong="def test_wrong():\n    assert False\n", test_broken="import nowhere\n")
    pytester.runpytest_subprocess("--continue-on-collection-errors").assert_outcomes(failed=1, errors=1)
    assert loaded_in(pytester.path) == sorted([*LIGHT, "perflab.base", "perflab.base.errors"])


CHECK = "import pytest\n@pytest.mark.correctness\ndef test_right():\n    pass\n"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(["-m", "correctness"], "*1 passed, 2 deselected*"), (["--collect-only", "-m", "perf"], "*test_measured*")],
    ids=["correctness checks", "collecting perf cases alone"],
)
def test_so_do_correctness_checks_and_collecting(pytester: pytest.Pytester, arguments: list[str], shown: str) -> None:
    pytester.makepyfile(CHECK + PLAIN + MEASURED)
    pytester.runpytest_subprocess(*arguments).stdout.fnmatch_lines([shown])
    assert loaded_in(pytester.path) == LIGHT


def test_so_does_a_project_with_perf_cases_and_ini_keys_while_none_is_selected_and_nothing_is_shown_or_written(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini(
        "[pytest]\naddopts = -m 'not perf'\nperf_budget = 20\nperf_json = results.json\nperf_prune = true\n"
        "perf_kernels = nowhere:examples\nperf_baselines = stored\n"
    )
    pytester.makepyfile(PLAIN + MEASURED)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, deselected=1)
    assert loaded_in(pytester.path) == LIGHT
    result.stdout.no_fnmatch_line("*perf:*")
    result.stdout.no_fnmatch_line("*= perf =*")
    assert not [name for name in (".perflab", "stored", "results.json") if (pytester.path / name).exists()]


def test_so_do_workers_and_their_controller_which_listens_to_them_and_no_list_of_cases_stays(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    pytester.makepyfile(test_right=PLAIN + MEASURED, test_wrong="def test_wrong():\n    assert False\n")
    pytester.runpytest_subprocess("-p", "xdist.plugin", "-n1", "-m", "not perf").assert_outcomes(passed=1, failed=1)
    assert loaded_in(pytester.path, "gw0") == sorted([*LIGHT, "perflab.base", "perflab.base.errors"])
    assert loaded_in(pytester.path) == sorted(
        [*LIGHT, *(f"perflab.running{name}" for name in ("", ".session", ".session.workers"))]
    )
    assert not list(tmp_path.glob("perflab-*"))  # TMPDIR of every story


def test_an_option_has_settings_read_and_nothing_that_measures_or_collects(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PLAIN)
    pytester.runpytest_subprocess("--perf-budget=20").assert_outcomes(passed=1)
    loaded = loaded_in(pytester.path)
    assert {"msgspec", "perflab.settings.settings"} <= set(loaded)
    assert not {
        "torch",
        "perflab.measured.run.cases",
        "perflab.running.session.results",
        "perflab.report.summary",
    } & set(loaded)


def test_help_shows_every_option_with_its_default(pytester: pytest.Pytester) -> None:
    text = " ".join(pytester.runpytest_subprocess("--help").stdout.str().split())
    assert "--perf-threshold=SHARE slowdown of the median that counts (default: 5%)" in text
    assert "--perf-replicate=" not in text


def test_markers_and_fixtures_are_shown_with_what_they_take(pytester: pytest.Pytester) -> None:
    shown = pytester.runpytest_subprocess("--markers").stdout.str()
    assert "@pytest.mark.perf(threshold=, memory_threshold=, memory_limit=, leak_calls=, floor=, " in shown
    assert "@pytest.mark.correctness: a check of numerics" in shown
    pytester.makepyfile(PLAIN)
    shown = pytester.runpytest_subprocess("--fixtures").stdout.str()
    assert "Measure a callable's latency and peak memory" in shown
    assert "compiled_kernel" in shown
