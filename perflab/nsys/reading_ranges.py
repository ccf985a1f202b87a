"""Reads ranges from an export: all that somebody named, and those of operators in chosen calls only; and their names.

PyTorch (``emit_nvtx``) writes ``aten::mm, seq = 5, op_id = 6, sizes = [[8, 16], [16, 4]], input_op_ids = [(2,0),
(0,-1)]``. The parts were added over the years; each may be missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from perflab.attribution.places import Where
from perflab.measure.calls.nvtx import MEMORY, OPERATORS, SAMPLES, WARM_UP
from perflab.nsys.export import API, LONGEST_NS, RANGES, STRINGS, WORK, Export
from perflab.nsys.ranges import Opened, Ranges
from perflab.profiles.events import NODE
from perflab.profiles.recording import AT, BETWEEN
from perflab.units import format_count

NOT_OPERATOR = (
    "instr({0}, ', op_id = ') = 0 AND instr({0}, ', seq = ') = 0 AND {0} NOT GLOB 'aten::*'"
    " AND {0} NOT GLOB 'autograd::engine::evaluate_function: *'"
)
"""The SQL condition for a range's name that somebody chose, in contrast to a name that PyTorch wrote.
``Named.is_operator`` and ``place_or_node`` classify a name as text."""
_PASS = re.compile(rf"(.+): ({WARM_UP}|{SAMPLES}|{MEMORY}|{OPERATORS})", re.DOTALL)


class Named(NamedTuple):
    """The parts of a range's name."""

    name: str
    sequence: int = -1
    sizes: str = ""
    """Shapes of the inputs as PyTorch writes them; ``""``: somebody's own range, or a frame of autograd's engine."""

    @property
    def is_operator(self) -> bool:
        """Whether PyTorch opened the range for an operator, in contrast to a range that somebody named."""
        return bool(self.sizes) or self.sequence >= 0 or "::" in self.name.partition(" ")[0]


def named(text: str) -> Named:
    """Split a range's name into parts."""
    rest = text.partition(", input_op_ids = ")[0]
    rest, _, sizes = rest.partition(", sizes = ")
    rest = _without_number(rest, ", op_id = ")[0]
    name, sequence = _without_number(rest, ", seq = ")
    return Named(name, sequence, sizes)


def _without_number(text: str, before: str) -> tuple[str, int]:
    start, found, number = text.rpartition(before)
    return (start, int(number)) if found and number.isdecimal() else (text, -1)


@lru_cache(maxsize=65536)
def shapes_of(sizes: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of an operator's inputs; ``()`` for an input that is no tensor."""
    try:
        found = json.loads(sizes)
    except ValueError:
        return ()
    if not isinstance(found, list):
        return ()
    return tuple(
        tuple(one) if isinstance(one, list) and all(isinstance(size, int) for size in one) else () for one in found
    )


@lru_cache(maxsize=65536)
def place_or_node(name: str) -> tuple[Where | None, str | None]:
    """Return the module and line of a range of perflab's, and the backward node of a frame of autograd's engine.

    None: the name is not of such a range.
    """
    module, _, line = name.removeprefix(AT).partition(BETWEEN)
    place = Where(module, line) if name.startswith(AT) else None
    return place, name.removeprefix(NODE) if name.startswith(NODE) else None


def case_and_pass(name: str) -> tuple[str, str] | None:
    """Split ``test_step[small]: samples`` into the case and ``samples``; None: the name is of another range."""
    found = _PASS.fullmatch(name)
    return (found[1], found[2]) if found else None


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
