"""Renders several runs side by side as text and Markdown: each run's machine, then the numbers of each case. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from perflab.tables.contents import Case, Compared, Contents, RunContents
from perflab.tables.escaping import code, escape, fitting, link, one_line
from perflab.tables.lines import MARKED, shorten, with_mark, wrap_facts
from perflab.units import BYTES_PER, format_bytes, format_change, format_ns, format_si

NOTHING = "–"
_SHOWN = ("latency", "peak")
_LEAST_NAME = 22
_LONG = 10_000_000
"""The least count that is shortened with a unit prefix."""
_MOST_PLACES = 3
_GROUPED = 10_000
_NEAR = 100
"""The ratio of two values below which both are written in one unit."""


def run_facts(run: RunContents) -> list[str]:
    """Return the facts that distinguish a run: commit, time, machines, and whether the run may be incomplete.

    A machine is described in a few words: device, torch and machine.
    """
    commit = run.commit
    machines = [
        f"{one.device}: {one.device_name}, torch {one.torch}" + (f", machine {one.machine}" if one.machine else "")
        for one in run.environments
    ]
    short = f"{commit[:10]}{'+dirty' if commit.endswith('+dirty') else ''}" if commit else ""
    return [
        f"commit {short}" if commit else "no commit",
        run.created[:16].replace("T", " "),
        *machines,
        *([] if run.complete else ["possibly incomplete"]),
    ]


def amount(value: float, unit: str) -> str:
    """Return a number with its unit, as tables show it."""
    if unit == "ns":
        return format_ns(value) if value >= 0 else f"-{format_ns(-value)}"
    if unit == "bytes":
        return format_bytes(round(value)) if value >= 0 else f"-{format_bytes(-round(value))}"
    if abs(value) >= _LONG:
        return format_si(value) if value > 0 else f"-{format_si(-value)}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit and, if it is a count, with all of its digits, as sentences on changes have it."""
    return f"{value:,.15g}" if unit not in ("ns", "bytes") and value < _LONG else amount(value, unit)


def pair_text(old: float, new: float, unit: str) -> str:
    """Return two values with an arrow between them: ``1.20 ms -> 1.31 ms``."""
    return " -> ".join(pair_texts(old, new, unit))


def pair_texts(old: float, new: float, unit: str) -> tuple[str, str]:
    """Return two values as text: ``1.20 ms``, ``1.31 ms``; ``1000 B``, ``2000 B``; ``473.000 MiB``, ``472.988 MiB``.

    Memory is written in the unit of the larger value, with as many digits as show a difference; or else in bytes.
    """
    texts = value_text(old, unit), value_text(new, unit)
    low, high = sorted((old, new))
    in_one_unit = texts[0].split()[-1] == texts[1].split()[-1]
    if unit == "bytes" and low != high and (texts[0] == texts[1] or (not in_one_unit and high < _NEAR * low)):
        name = value_text(high, unit).split()[-1]
        places = max(2, math.ceil(1 - math.log10((high - low) / BYTES_PER[name])))
        if name in ("B", "KiB") or places > _MOST_PLACES:
            texts = _in_bytes(old), _in_bytes(new)
        else:
            texts = f"{old / BYTES_PER[name]:.{places}f} {name}", f"{new / BYTES_PER[name]:.{places}f} {name}"
    return texts


def _in_bytes(value: float) -> str:
    return f"{int(value):,} B" if value >= _GROUPED else f"{int(value)} B"


def beside_lines(contents: Contents, width: int, *, judged: bool = False) -> Iterator[str]:
    """Yield lines on the runs, then on each case with its numbers in each run.

    No line is longer than ``width``, unless a name is. ``judged``: what became worse is reported elsewhere, so the
    legend does not say that nothing is judged.
    """
    for number, run in enumerate(contents.runs, 1):
        facts = [f"{number}: {run.label}", *run_facts(run), *_verdicts(run)]
        head, *more = wrap_facts(list(map(one_line, facts)), width - 3)
        yield head
        yield from (f"   {line}" for line in more)
        for note in run.notes:
            yield from (f"   {line}" for line in textwrap.wrap(one_line(note), width - 3))
    yield from _table_lines(contents, width, judged=judged)


def beside_markdown(contents: Contents, page: str | None = None, *, judged: bool = False) -> str:
    """Return the runs side by side as GitHub Markdown, with a link to ``page``; the text ends with a newline.

    ``judged``: what became worse is reported elsewhere, so the legend does not say that nothing is judged.
    """
    blocks = ["### perflab: runs side by side", *link(page)]
    facts = [
        [f"**{number}**: {code(run.label)}", *map(escape, [*run_facts(run), *_verdicts(run)])]
        for number, run in enumerate(contents.runs, 1)
    ]
    blocks.append("\n".join(f"- {' · '.join(ones)}" for ones in facts))
    blocks += [escape(f"{number}: {note}") for number, run in enumerate(contents.runs, 1) for note in run.notes]
    titles = [f"{name} {number}" for number, _ in enumerate(contents.runs, 1) for name in ("time", "peak")]
    lines = [f"| case | {' | '.join(titles)} | |", f"|---|{'--:|' * len(titles)}---|"]
    for compared in contents.compared:
        cells = [text for pair in _cells(contents, compared) for text in pair]
        notes = "; ".join(_notes(contents, compared))
        lines.append(f"| {' | '.join([code(name_in(contents, compared)), *map(escape, cells), escape(notes)])} |")
    return fitting([*blocks, " ".join(map(escape, _legend(contents, judged=judged))), "\n".join(lines)], page)


def _verdicts(run: RunContents) -> list[str]:
    return [f"{many} {verdict}" for verdict, many in run.verdicts.items()] or ["no cases"]


def _now(case: Case | None, name: str) -> str:
    """Return the present value of a case's quantity in its unit; ``–`` if there is none."""
    one = case.quantities.get(name) if case is not None else None
    return amount(one.now, one.unit) if one is not None else NOTHING


_LEGEND = (
    "Ratios are relative to the first run that has numbers of the case. Runs of different machines or versions have "
    "none."
)
_NOT_JUDGED = "Nothing here is judged."


def _legend(contents: Contents, *, judged: bool) -> list[str]:
    disturbed = any(case.beside for run in contents.runs for case in run.cases)
    return [_LEGEND, *([] if judged else [_NOT_JUDGED]), *([f"{MARKED}."] if disturbed else [])]


def name_in(contents: Contents, compared: Compared) -> str:
    """Return the case's name in the first run that has the case."""
    return next(case.name for case in cases_of(contents, compared) if case is not None)


def cases_of(contents: Contents, compared: Compared) -> list[Case | None]:
    """Return the case in each run; None for a run that does not have the case."""
    pairs = zip(contents.runs, compared.cases, strict=True)
    return [run.cases[at] if at is not None else None for run, at in pairs]


def _cells(contents: Contents, compared: Compared) -> list[list[str]]:
    """Return a case's cells for each run: time and peak, with the change against the first run with numbers."""
    found = []
    for number, case in enumerate(cases_of(contents, compared)):
        cells = []
        for name in _SHOWN:
            text = _now(case, name)
            ratio = compared.ratios.get(name, [None] * len(contents.runs))[number]
            exact = case is not None and name in case.quantities and case.quantities[name].exact
            is_marked = name == _SHOWN[0] and text != NOTHING and case is not None and bool(case.beside)
            text = with_mark(text, disturbed=is_marked)
            cells.append(text if ratio is None or (exact and ratio == 1.0) else f"{text} {format_change(ratio)}")
        found.append(cells)
    return found


def _notes(contents: Contents, compared: Compared) -> list[str]:
    """Return notes on a case, by number of the run where a note is about one run.

    The notes say why there is no ratio, which verdict came without numbers, and which other exact quantities changed.
    """
    cases = cases_of(contents, compared)
    told = [f"{number}: {why}" for number, why in enumerate(compared.elsewhere, 1) if why is not None]
    told += [
        f"{number}: {case.verdict}" for number, case in enumerate(cases, 1) if case is not None and not case.quantities
    ]
    others = [
        name
        for name, ratios in compared.ratios.items()
        if name not in _SHOWN
        and any(one not in (None, 1.0) for one in ratios)
        and all(case is None or name not in case.quantities or case.quantities[name].exact for case in cases)
    ]
    for name in others:
        told.append(f"{name.replace('_', ' ')} {' / '.join(_now(case, name) for case in cases)}")
    return told


def _table_lines(contents: Contents, width: int, *, judged: bool) -> Iterator[str]:
    """Yield the table, with the runs of each case below each other, so that any number of runs fits a terminal."""
    rows = [
        (one_line(name_in(contents, one)), _cells(contents, one), _notes(contents, one)) for one in contents.compared
    ]
    titles = ("time", "peak")
    sizes = [
        2 + max([len(title), *(len(cells[at]) for _, ones, _ in rows for cells in ones)])
        for at, title in enumerate(titles)
    ]
    numbers = 1 + len(str(len(contents.runs)))
    room = max(_LEAST_NAME, width - sum(sizes) - numbers)
    names = min(room, max([len("case"), *(len(name) for name, _, _ in rows)]))
    if rows:
        yield f"{'case'.ljust(names)}{'':{numbers}}{''.join(t.rjust(s) for t, s in zip(titles, sizes, strict=True))}"
    for name, ones, notes in rows:
        there = [(number, cells) for number, cells in enumerate(ones, 1) if any(text != NOTHING for text in cells)]
        for number, cells in there or [(1, ones[0])]:
            is_first = number == (there[0][0] if there else 1)
            left = shorten(name, names).ljust(names) if is_first else " " * names
            yield f"{left}{number:>{numbers}}{''.join(text.rjust(s) for text, s in zip(cells, sizes, strict=True))}"
        for note in notes:
            yield from (f"  {line}" for line in textwrap.wrap(one_line(note), width - 2))
    if rows:
        yield from textwrap.wrap(" ".join(_legend(contents, judged=judged)), width)
    else:
        yield "no perf case ran"
