"""Who does not ask pays nothing: no torch, no files, no output."""

from __future__ import annotations

import pytest

REPORT_TORCH = """
import atexit, sys
atexit.register(lambda: print("loaded:", sorted({"torch", "triton", "numpy", "rich"} & set(sys.modules))))
"""


@pytest.fixture(autouse=True)
def only_perflab(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other plugins may load what they like."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p perflab.plugin")


@pytest.mark.parametrize("argument", ["--help", "--fixtures", "--markers", "--collect-only", "-v"])
def test_without_a_perf_test_selected_torch_is_not_imported(pytester: pytest.Pytester, argument: str) -> None:
    pytester.makeconftest(REPORT_TORCH)
    pytester.makepyfile("def test_plain():\n    pass\n")
    result = pytester.runpytest_subprocess(argument)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["loaded: []*"])


def test_without_a_perf_test_selected_nothing_is_shown_or_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain():\n    pass\ndef test_measured(perf):\n    perf(sum, [1])\n")
    result = pytester.runpytest_subprocess("-m", "not perf", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.no_fnmatch_line("*perf:*")
    result.stdout.no_fnmatch_line("*= perf =*")
    assert not (pytester.path / ".perflab").exists()
    assert not (pytester.path / "baselines").exists()


def test_collecting_perf_tests_alone_loads_no_torch(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(REPORT_TORCH)
    pytester.makepyfile("def test_measured(perf):\n    perf(sum, [1])\n")
    result = pytester.runpytest_subprocess("--collect-only", "-m", "perf")
    result.stdout.fnmatch_lines(["*test_measured*", "loaded: []*"])


def test_help_shows_every_option_with_its_default(pytester: pytest.Pytester) -> None:
    text = " ".join(pytester.runpytest_subprocess("--help").stdout.str().split())
    assert "--perf-threshold=SHARE slowdown of the median that counts (default: 5%)" in text
    assert "--perf-replicate=" not in text
