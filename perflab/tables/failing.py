"""The text of failures: how a case is worse, lines of one width, a table, and counts that changed. Pure.

The table has each quantity before and now. Quantities that failed the case stand first and are marked."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perflab.results.records import Change, Drift, Judgement
from perflab.tables.lines import columns
from perflab.units import format_bytes, format_change, format_interval, format_percent

REASON_TO_FILL_IN = '--perf-reason="…"'
"""The option with a reason to fill in; it is refused as it stands, since the reason must be in the user's words."""

WORSE = {"latency": "is slower", "memory": "needs more memory", "counts": "has higher counts"}
_BRIEFLY = {"latency": "slower", "memory": "more memory", "counts": "higher counts"}


IMPROVED = "is better than its baseline, and --perf-fail-improved fails such cases: save the new numbers"


def headline(judgement: Judgement, base: str) -> str:
    """Return in words how a case is worse: ``is slower than its baseline``.

    A quantity whose drift decides is worse than its anchor, by the sum of its accepted steps. Time and memory may both
    be named, one against the baseline and the other against the anchor.

    ``base`` is what the case was compared with: ``its baseline``, or ``in main (8009b65)``.
    """
    deciding = _deciding(judgement)
    plain = [WORSE[name] for name in judgement.worse if name not in deciding]
    parts = [f"{' and '.join(plain)} than {base}"] if plain else []
    parts += [f"{WORSE[name]} than {_since(name, drift)}" for name, drift in deciding.items()]
    return " and ".join(parts) or f"is worse than {base}"


def drift_sentences(judgement: Judgement) -> list[str]:
    """Return why a case is ``regressed`` although it passes against its last baseline; empty for every other case."""
    return [f"{_BRIEFLY[name]} than {_since(name, drift)}" for name, drift in _deciding(judgement).items()]


def _deciding(judgement: Judgement) -> dict[str, Drift]:
    drift = judgement.drift
    return {name: drift[name] for name in judgement.worse if name in drift and drift[name].decides}


def _since(name: str, drift: Drift) -> str:
    change = drift.change
    much = f"+{format_bytes(int(change.now - change.before))}" if name == "memory" else format_change(change.ratio)
    steps = (
        "1 accepted step, which did not pass the limit"
        if drift.steps == 1
        else f"{drift.steps} accepted steps, none of which passed the limit"
    )
    return f"its anchor of {drift.recorded[:10]} by {much}, in {steps}"


WIDTH = 80
"""Width of a failure's text, in characters."""
MARK = "failed"
_NOTICED = 0.01
"""The share by which instructions must differ to be shown; smaller differences occur in every run."""


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Wrap the text into lines of ``WIDTH``, with ``indent`` before all lines but the first."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True)
class Quantity:
    """A row of the table: the quantity's name, then a cell for each further column."""

    cells: Sequence[str]
    failed: bool = False


def failing_table(head: Sequence[str], rows: Sequence[Quantity]) -> list[str]:
    """Return the table's lines, with ``head`` first; names are aligned left, all other cells right."""
    ordered = sorted(rows, key=lambda row: not row.failed)
    cells = [(*head, ""), *((*row.cells, MARK if row.failed else "") for row in ordered)]
    return columns(cells, range(1, len(head)), indent="")


def changed(counts: Mapping[str, Change]) -> dict[str, Change]:
    """Return the counts that changed; of instructions only those that changed by more than ``_NOTICED``."""
    return {
        name: change
        for name, change in counts.items()
        if change.now != change.before and (not _wobbles(name) or abs(change.ratio - 1.0) > _NOTICED)
    }


def count_fact(name: str, change: Change) -> str:
    """Return the change of a count in words: ``operators 112 -> 118``."""
    return f"{_shown(name)} {int(change.before):,} -> {int(change.now):,}"


def count_row(name: str, change: Change) -> tuple[str, ...]:
    """Return a count's cells in the failure's table: name, before, now, change, interval, limit."""
    before, now = int(change.before), int(change.now)
    if change.limit is None:
        limit = "none"
    else:
        limit = f"+{format_percent(change.limit - 1.0)}" if change.limit > 1.0 else "exact"
    if _wobbles(name):
        return (_shown(name), f"{before:,}", f"{now:,}", format_change(change.ratio), "–", limit)
    between = "exact" if change.low is None or change.high is None else format_interval(change.low, change.high)
    return (_shown(name), f"{before:,}", f"{now:,}", f"{now - before:+,}", between, limit)


def _wobbles(name: str) -> bool:
    return name.endswith("instructions")


def _shown(name: str) -> str:
    return name.replace("_", " ")
