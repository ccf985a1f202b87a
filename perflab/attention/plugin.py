"""pytest's side of the suite: spreads ``candidate`` and ``case`` over tests, and shows what wrong cases share.

It is loaded where ``--attention`` is given, and by a ``conftest.py`` that names it in ``pytest_plugins``. Then a test
that takes ``candidate`` runs for each attention candidate, and one that takes ``case`` too for each of its cases.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.register_assert_rewrite("perflab.attention.suite")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report the findings about the candidates that --attention names."""
    if not config.getoption("--attention"):
        return []
    from perflab.attention.chosen import attention_candidates

    return [str(candidate) for candidate in attention_candidates(config)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise `candidate` with each attention candidate, and `case` with each of the candidate's cases."""
    if "candidate" not in metafunc.fixturenames:
        return
    from perflab.attention.chosen import attention_candidates

    candidates = attention_candidates(metafunc.config)
    if "case" not in metafunc.fixturenames:
        metafunc.parametrize("candidate", candidates, ids=[candidate.name for candidate in candidates])
        return
    from perflab.attention.grid import cases_for

    each = [(candidate, case) for candidate in candidates for case in cases_for(candidate.claims)]
    ids = [f"{candidate.name}-{case}" for candidate, case in each]
    metafunc.parametrize(("candidate", "case"), each, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that are not about the named attention candidates, if --attention is given."""
    if not config.getoption("--attention"):
        return
    from perflab.attention.chosen import attention_candidates

    names = [candidate.name for candidate in attention_candidates(config)]

    def is_meant(item: pytest.Item) -> bool:
        parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        return "candidate" in parameters or parameters.get("impl") in names

    config.hook.pytest_deselected(items=[item for item in items if not is_meant(item)])
    items[:] = [item for item in items if is_meant(item)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what the wrong cases of a candidate have in common."""
    noted = [
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, value in getattr(report, "user_properties", ())
        if name == "attention"
    ]
    if not any(result["text"] for result in noted):
        return
    from perflab.attention.tally import tally

    terminalreporter.section("attention")
    for line in tally(noted):
        terminalreporter.write_line(line)
