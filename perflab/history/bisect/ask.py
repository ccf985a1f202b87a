"""Finds the case of a bisection by a part of its name, and the range by an event of the case's history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from perflab.base.errors import UsageError
from perflab.base.git import working_tree
from perflab.history.bisect.run import LATENCY, Answer, Range, bisect, inexact
from perflab.history.bisect.trials import Bench
from perflab.history.contents import ACCEPTED, ALARM, POSSIBLE, Contents, EventRow, Member
from perflab.history.series import History
from perflab.history.telling import contents_of
from perflab.tables.lines import short_name
from perflab.units import format_names


def ask(
    case: str,
    source: Callable[[], History],
    ends: tuple[str | None, str | None],
    quantity: str | None,
    *,
    build: Sequence[str],
    options: Sequence[str],
    told: Callable[[str], None],
) -> Answer:
    """Bisect the range between the given ends, or else the range of the case's newest event.

    Args:
        case: the case's node id; if an end is missing, a part of the node id.
        source: reads the history; only called if an end is missing.
        ends: the good and the bad commit; None: the end of the event's range.
        quantity: the quantity that changed; None: the event's, or the latency if both ends are given.
        build: the command to run in each worktree before pytest; empty: none.
        options: further options for pytest.
        told: called with messages about the progress.

    Raises:
        RivalError: git has no repository here.
        UsageError: the arguments name nothing that can be bisected.
    """
    root = Path().resolve()
    working_tree(root)
    good, bad = ends
    if good is not None and bad is not None:
        return bisect(Bench(root, case, "", options, build, told), Range(good, bad, quantity or LATENCY))
    contents = contents_of(source(), root)
    name, variant = _case(contents, case)
    event, found = _event(contents, name, variant, quantity)
    if event.good is None or event.bad is None:
        raise UsageError(f"event {event.number} lies between runs that name no commits", "name --good and --bad")
    row = contents.series[found]
    member = next(one for one in event.members if one.series == found)
    told(f"event {event.number}: {row.quantity} of {name}{variant}")
    bench = Bench(root, name, variant, options, build, told)
    searched = Range(good or event.good, bad or event.bad, row.quantity, expected_step(member))
    return bisect(bench, searched)


def expected_step(member: Member) -> float | None:
    """Return the ratio to expect on an unchanged machine: without the machine's part, if the machine changed too.

    None if that remainder may be in either direction, or is unknown.
    """
    if member.machine is None:
        return member.ratio
    if member.rest is None or member.rest_low is None or member.rest_high is None:
        return None
    return None if member.rest_low <= 1.0 <= member.rest_high else member.rest


def _case(contents: Contents, text: str) -> tuple[str, str]:
    found = list(dict.fromkeys((row.case, row.variant) for row in contents.series if text in row.case + row.variant))
    exact = [one for one in found if text in (one[0], "".join(one))]
    if len(exact) == 1:
        return exact[0]
    if len(found) != 1:
        many = format_names([short_name(one[0]) + one[1] for one in found]) or "none"
        raise UsageError(f"--bisect={text}: its history has {len(found)} such cases ({many})", "name one of them")
    return found[0]


def _event(contents: Contents, case: str, variant: str, quantity: str | None) -> tuple[EventRow, int]:
    """Return the newest event of the case, and the index of the case's series in it.

    Alarms and accepted changes come before possible changes; of equally new events, times before exact quantities.
    """
    series = contents.series
    asked = [one for one in series if (one.case, one.variant) == (case, variant) and one.quantity == quantity]
    if quantity is not None and quantity != LATENCY and asked and not any(one.exact for one in asked):
        raise inexact(quantity)
    ranked: list[tuple[tuple[bool, int, bool], EventRow, int]] = []
    for event in contents.events:
        for one in event.members:
            row = series[one.series]
            is_asked = (row.case, row.variant) == (case, variant) and quantity in (None, row.quantity)
            can_be_tried = row.exact or row.quantity == LATENCY
            if is_asked and can_be_tried and event.kind in (ALARM, ACCEPTED, POSSIBLE):
                rank = (event.kind != POSSIBLE, event.first_new, not row.exact)
                ranked.append((rank, event, one.series))
    if not ranked:
        raise UsageError(f"{case}{variant} has no event in this history", "name a range: --good=COMMIT --bad=COMMIT")
    _, event, found = max(ranked, key=lambda one: one[0])
    return event, found
