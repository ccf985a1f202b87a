"""pytest's side of the suite: spreads ``candidate`` and ``case`` over tests, and shows what wrong cases share.

It is loaded where ``--attention`` is given, and by a ``conftest.py`` that names it in ``pytest_plugins``. Then a test
that takes ``candidate`` runs for each attention candidate, and one that takes ``case`` too for each of its cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from perflab.units import format_count

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

    terminalreporter.section("attention")
    for line in tally(noted):
        terminalreporter.write_line(line)


# With fewer cases of a level "all of them" is a matter of chance.
FEWEST = 4
MOST_NAMED = 5
TELLING = 1.4
"""A level that is always wrong is named if cases of other levels are right this many times as often as all cases."""


def tally(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines for a reader about the results that `hold` noted for each case; none if every case is right."""
    lines: list[str] = []
    for candidate in dict.fromkeys(result["candidate"] for result in results):
        own = [result for result in results if result["candidate"] == candidate]
        wrong = [result for result in own if result["text"]]
        if not wrong:
            continue
        lines.append(f"{candidate}: wrong in {len(wrong)} of {format_count(len(own), 'case')}")
        causes = Counter(cause for result in wrong for cause in set(result["causes"]))
        for cause, count in causes.most_common(MOST_NAMED):
            lines.append(f"  {count:4} x {cause}")
        silent = sum(not result["causes"] for result in wrong)
        if silent and causes:
            lines.append(f"  {silent:4} x no known cause")
        lines += [f"  {line}" for line in _what_they_share(own)]
        smallest = min(wrong, key=lambda result: int(result["levels"]["n_q"]) * int(result["levels"]["n_k"]))
        lines.append(f"  the smallest: {smallest['case']}")
    return lines


def _what_they_share(own: Sequence[Mapping[str, Any]]) -> list[str]:
    counts: dict[tuple[str, str], list[int]] = {}
    for result in own:
        for item in result["levels"].items():
            counts.setdefault(item, [0, 0])[bool(result["text"])] += 1
    enough = {item: pair for item, pair in counts.items() if sum(pair) >= FEWEST}
    always = [item for item, (right, wrong) in enough.items() if wrong and not right]
    lines = []
    for factor in dict.fromkeys(factor for factor, _ in always):
        levels = [level for name, level in always if name == factor]
        others = [pair for (name, level), pair in enough.items() if name == factor and level not in levels]
        if others:
            # Where nearly everything is wrong, some level is always wrong by chance.
            right = sum(pair[0] for pair in others) / sum(sum(pair) for pair in others)
            if right > TELLING * sum(not result["text"] for result in own) / len(own):
                lines.append(f"always wrong: {factor} {', '.join(levels)} (of other levels {right:.0%} are right)")
    never = [f"{factor} {level}" for (factor, level), (right, wrong) in enough.items() if right and not wrong]
    if never and len(never) <= MOST_NAMED:
        lines.append(f"never wrong: {', '.join(never)}")
    return lines
