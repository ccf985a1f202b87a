"""Reads ranges from an export: all that somebody named, and those of operators in chosen calls only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from perflab.nsys.export import API, LONGEST_NS, RANGES, STRINGS, WORK, Export
from perflab.nsys.names import NOT_OPERATOR
from perflab.nsys.ranges import Opened, Ranges
from perflab.units import format_count

_PUSHED, _STARTED = (59, 70), (60, 71)
"""Types of events in every version: push/pop ranges, and start/end ranges."""
MOST_RANGES = 1_000_000
"""The most named ranges that are read; of more, the longest are read. A million take 300 MB."""


def _text(export: Export) -> tuple[str, str]:
    """Return the SQL expression of a range's name, and the join that the expression needs."""
    columns = export.tables[RANGES]
    own = ["e.text"] if "text" in columns else []
    if "textId" in columns and export.has(STRINGS):
        own.append("s.value")
        join = f"LEFT JOIN {STRINGS} s ON s.id = e.textId"
    else:
        join = ""
    nothing = "''"
    return f"COALESCE({', '.join([*own, nothing, nothing])})", join


def named_ranges(export: Export, process: int) -> tuple[Ranges, list[str]]:
    """Return the ranges that somebody opened by name in one process, and notes on them."""
    if not export.has(RANGES):
        return Ranges([]), []
    text, join = _text(export)
    kinds = ", ".join(map(str, (*_PUSHED, *_STARTED)))
    condition = (
        f"e.eventType IN ({kinds}) AND (e.globalTid >> 24 & 16777215) = {process} AND {NOT_OPERATOR.format(text)}"
    )
    source = f"FROM {RANGES} e {join} WHERE {condition}"

    @cache
    def last_ns() -> int:  # a scan of all rows takes seconds, and few exports need it
        return max(_last_ns(export, table) for table in (RANGES, API, *WORK) if export.has(table))

    domain = "COALESCE(e.domainId, 0)" if "domainId" in export.tables[RANGES] else "0"
    columns = f"{text}, e.start, e.end, e.globalTid, e.eventType, {domain}"
    rows = export.rows(f"SELECT {columns} {source} LIMIT {MOST_RANGES + 1}")
    found, unclosed, endless = _opened(rows, last_ns)
    notes = []
    if len(found) > MOST_RANGES:
        rows = export.rows(
            f"SELECT {columns} {source} ORDER BY COALESCE(e.end, {last_ns()}) - e.start DESC LIMIT {MOST_RANGES}"
        )
        found, unclosed, endless = _opened(rows, last_ns)
        notes.append(f"there are more than {MOST_RANGES:,} named ranges: the shortest were not read")
    if unclosed:
        notes.append(
            f"{format_count(unclosed, 'range')} never closed (a push without its pop?): until the end of the recording"
        )
    if endless:
        notes.append(
            f"{format_count(endless, 'range')} left out: the end is before the beginning, or over a week later"
        )
    return Ranges(found), notes


def _last_ns(export: Export, table: str) -> int:
    length = "COALESCE(end, start) - start"
    sane = f"typeof(start) = 'integer' AND typeof(COALESCE(end, 0)) = 'integer' AND {length} BETWEEN 0 AND {LONGEST_NS}"
    (found,) = next(export.rows(f"SELECT COALESCE(MAX(start + {length}), 0) FROM {table} WHERE {sane}"))
    return int(found)


def _opened(
    rows: Iterator[tuple[str, int, int | None, int, int, int]], last_ns: Callable[[], int]
) -> tuple[list[Opened], int, int]:
    found, unclosed, endless = [], 0, 0
    known: dict[str, str] = {}
    for text, start_ns, end_ns, thread, kind, domain in rows:
        name = known.setdefault(text, str(text))  # one object per name; in a damaged file, a name may be no text
        unclosed += end_ns is None
        end_ns = last_ns() if end_ns is None else end_ns
        if not 0 <= end_ns - start_ns <= LONGEST_NS:
            endless += 1
            continue
        found.append(Opened(name, start_ns, end_ns, thread, kind in _STARTED, domain))
    return found, unclosed, endless


def operator_ranges(
    export: Export, process: int, spans: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, start, end and thread of the ranges that PyTorch opened within some spans of time."""
    if not spans or not export.has(RANGES):
        return
    text, join = _text(export)
    condition = f"e.eventType IN ({', '.join(map(str, _PUSHED))}) AND (e.globalTid >> 24 & 16777215) = {process}"
    yield from export.rows(
        f"SELECT {text}, e.start, COALESCE(e.end, e.start), e.globalTid FROM {RANGES} e {join}"
        f" WHERE {_within(sorted(spans))} AND {condition} AND NOT ({NOT_OPERATOR.format(text)})"
    )


def _within(spans: Sequence[tuple[int, int]]) -> str:
    """Return the SQL condition that a range begins in one of the spans; it bisects, because it tests every row."""
    if len(spans) == 1:
        return f"e.start BETWEEN {spans[0][0]} AND {spans[0][1]}"
    half = len(spans) // 2
    return f"CASE WHEN e.start < {spans[half][0]} THEN {_within(spans[:half])} ELSE {_within(spans[half:])} END"
