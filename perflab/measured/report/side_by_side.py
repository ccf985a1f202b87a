"""Side by side: compares the levels of one parameter, in every case that has it. Pure.

A group is one test with fixed values of all other parameters; its lines are the levels, fastest first. Ratios, also of
phases, are relative to the first line, and come from interleaved runs with it (``Result.beside``). Quoted times stand
below and have no ratios.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perflab.base.data import Parameters
from perflab.base.grouping import groups_of
from perflab.base.identity import test_of
from perflab.measured.report.columns import (
    interval_ns,
    named,
    own_phases,
    phase_in,
    shown_ns,
    told,
    turns_with,
    without_ratio,
)
from perflab.measured.report.judged import judged, share_of_rate, with_best_rates
from perflab.measured.report.table import is_disturbed, said_instead
from perflab.results.measurement import Record
from perflab.results.records import Environment
from perflab.results.result import Result, parameters_of
from perflab.tables.escaping import bars_block, escape
from perflab.tables.lines import Line, cut, percent, short_name, with_mark, wrap_facts
from perflab.units import format_ns, format_rate

_COLUMNS = ("median", "spread", "ratio", "rate", "matmul", "peak")
_FLOPS = "flops"


@dataclass(frozen=True)
class Level:
    """One level in a group. ``cells``: column -> text. ``said`` replaces the cells of a level without numbers."""

    name: str
    cells: dict[str, str] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    said: str = ""
    ns: float | None = None
    """Time of one call in nanoseconds; ``cells`` has it as text."""
    result: Result | None = None

    @property
    def marked(self) -> str:
        """The level's name with the mark of a disturbed case, for tables."""
        return with_mark(self.name, disturbed=self.disturbed)

    @property
    def disturbed(self) -> bool:
        """Whether anything disturbed the level while it was measured."""
        return self.result is not None and is_disturbed(self.result)


@dataclass(frozen=True)
class Group:
    """The levels of one parameter in one test; all other parameters are equal."""

    parameter: str
    title: str
    levels: list[Level]
    cases: list[str] = field(default_factory=list)
    """Node ids of the group's cases."""

    @property
    def head(self) -> str:
        """The headline of all groups of one parameter."""
        return f"side by side: {self.parameter}"

    @property
    def timed(self) -> list[tuple[str, Result]]:
        """The measured levels, fastest first; the fastest one is the base of all others."""
        return [(level.name, level.result) for level in self.levels if level.result is not None]

    @property
    def untold(self) -> list[str]:
        """Lines on why levels have no ratio."""
        return without_ratio([(name, result, self.timed[0][1]) for name, result in self.timed[1:]])


_Member = tuple[str, Result]
"""A level and its case."""


@dataclass(frozen=True)
class _Key:
    """The common properties of a group's members. A ratio across machines would say nothing about the code."""

    parameter: str
    function: str
    others: tuple[tuple[str, object], ...]
    environment: Environment | None


def side_by_side(results: Sequence[Result], parameter: str | None = None) -> list[Group]:
    """Return the groups of ``parameter``, or of the parameter that each case asks for, in the order of the cases.

    A case without another level or a quoted number to compare with is left out. Predicted cases are not compared with
    measured ones.
    """
    members: dict[_Key, list[_Member]] = {}
    titles: dict[_Key, str] = {}
    without_record: list[tuple[_Key, _Member]] = []
    for result in with_best_rates(results):
        name = parameter or result.side_by_side
        given = parameters_of(result)
        if name is None or name not in given or not result.is_of_a_run:
            continue
        level = str(given[name])
        others = tuple((other, value) for other, value in given.items() if other != name)
        key = _Key(name, test_of(result.case), others, result.record.environment if result.record else None)
        titles.setdefault(key, _title(result.case, level, dict(others)))
        if result.record is None:
            without_record.append((key, (level, result)))
        else:
            members.setdefault(key, []).append((level, result))
    for key, member in without_record:  # its machine is unknown: it joins the group of each machine
        for other in [other for other in members if replace(other, environment=None) == key]:
            members[other].append(member)
    groups = [
        Group(key.parameter, titles[key], _levels(found), [result.case for _, result in found])
        for key, found in members.items()
    ]
    return [group for group in groups if len(group.levels) > 1]


def levels_with_bases(results: Sequence[Result]) -> Iterator[tuple[Result, Result]]:
    """Yield (level, fastest level of its group), for comparing times; groups that a summary shows come first."""
    groups = side_by_side(results)
    for group in sorted(groups, key=lambda one: any(one.cases == left.cases for left in in_brief(groups)[1])):
        yield from ((result, group.timed[0][1]) for _, result in group.timed[1:])


def in_brief(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Return the last group of each test, without phases, and the groups left out.

    In most grids the last group has the largest work.
    """
    last = {test_of(group.cases[0]): group for group in groups}
    shown = [group for group in groups if any(group is one for one in last.values())]
    left_out = [group for group in groups if all(group is not one for one in last.values())]
    return [replace(group, levels=[replace(level, phases=[]) for level in group.levels]) for group in shown], left_out


def side_by_side_lines(groups: Sequence[Group], width: int = 80) -> list[Line]:
    """Return groups as lines no wider than ``width`` (80 at least)."""
    if not groups:
        return []
    cells = {title: [level.cells.get(title, "") for group in groups for level in group.levels] for title in _COLUMNS}
    used = [(title, 2 + max(map(len, [title, *cells[title]]))) for title in _COLUMNS if any(cells[title])]
    room = max(width, 80) - sum(size for _, size in used)
    named = max(
        len(text) for group in groups for text in [*(f"  {level.marked}" for level in group.levels), group.head]
    )
    names = min(room, max(20, named))
    lines: list[Line] = []
    head = ""
    for group in groups:
        if group.head != head:
            head = group.head
            lines.append(Line(head.ljust(names) + "".join(title.rjust(size) for title, size in used)))
        lines.append(Line(group.title))
        for level in group.levels:
            name = f"  {level.marked}"
            if level.said:
                lines.append(Line(f"{name}  {level.said}"[: max(width, 80)]))
                continue
            if level.result is None and len(name) > names:  # show a source in full, even out of its column
                text = f"{name}  {level.cells['median']}"[: max(width, 80)]
            else:
                shown = cut(name, names).ljust(names)
                text = (shown + "".join(level.cells.get(title, "").rjust(size) for title, size in used)).rstrip()
            lines.append(Line(text))
            lines += [Line(f"    {text}") for text in wrap_facts(level.phases, max(width, 80) - 4)]
        untold = (textwrap.wrap(f"  {one}", max(width, 80), subsequent_indent="  ") for one in group.untold)
        lines += [Line(text) for texts in untold for text in texts]
    return lines


def side_by_side_markdown(groups: Sequence[Group]) -> list[str]:
    """Return each group as a Markdown table, and as bars of letters."""
    blocks = []
    for group in groups:
        used = [title for title in _COLUMNS if any(level.cells.get(title) for level in group.levels)]
        title = escape(f"{group.title}, by {group.parameter}")
        lines = [f"| {' | '.join([title, *used])} |", f"|---|{'--:|' * len(used)}"]
        for level in group.levels:
            said = f"{level.name}: {level.said}" if level.said else level.marked
            name = "<br>".join(map(escape, [said, *level.phases]))
            lines.append(f"| {' | '.join([name, *(escape(level.cells.get(t, '')) for t in used)])} |")
        timed = [(one.marked, one.ns, one.cells.get("median", "")) for one in group.levels if one.ns is not None]
        blocks += ["\n".join(lines), *map(escape, group.untold), *bars_block(f"time of one call, {group.title}", timed)]
    return blocks


def side_by_side_data(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return groups as dicts and lists: times in ns, ratios to the first level, noise as a share, memory in bytes."""
    return [
        {
            "parameter": group.parameter,
            "title": group.title,
            "cases": group.cases,
            "levels": [_level_data(group, level) for level in group.levels],
            **({"no_ratios": untold} if (untold := group.untold) else {}),
        }
        for group in groups
    ]


def _level_data(group: Group, level: Level) -> dict[str, Any]:
    if level.said:
        return {"level": level.name, "said": level.said}
    record = level.result.record if level.result is not None else None
    summary = record.summary if record is not None else None
    if level.result is None or summary is None or level.ns is None:
        return {"level": level.name, "ns": level.ns, "quoted": True}
    low_ns, high_ns = interval_ns(level.result) or (None, None)
    reading = judged(level.result)
    base = group.timed[0][1]
    ratio = turns_with(level.result, base).call
    return {
        "level": level.name,
        **({"disturbed": True} if level.disturbed else {}),
        "case": level.result.case,
        "ns": level.ns,
        "low_ns": low_ns,
        "high_ns": high_ns,
        "ratio": 1.0 if level.result is base else ratio.value if ratio is not None else None,
        **({"between": [ratio.low, ratio.high]} if ratio is not None else {}),
        "noise": named("spread").value(level.result),
        "phases_ns": reading.phases_ns if reading is not None else {},
        "peak_bytes": summary.memory.shown_bytes if summary.memory is not None else None,
        "rate": level.cells.get("rate"),
    }


def _title(case: str, level: str, others: Parameters) -> str:
    """Return the case's short name without the level.

    If the id does not show the level literally, the other parameters are given as ``name=value``.
    """
    function, bracket, identifier = short_name(case).partition("[")
    if not bracket or not others:
        return function
    rest, found = re.subn(rf"(^|-){re.escape(level)}(?=-|$)", r"\1", identifier.removesuffix("]"), count=1)
    if not found:
        rest = ", ".join(f"{name}={value}" for name, value in others.items())
    return f"{function}[{re.sub('-+', '-', rest).strip('-')}]"


def _levels(members: Sequence[_Member]) -> list[Level]:
    measured = [(shown_ns(result), name, result) for name, result in members]
    timed = [(ns, name, result) for ns, name, result in measured if ns is not None]
    timed.sort(key=lambda one: one[0])
    levels = [_level(name, result, ns, timed[0][2]) for ns, name, result in timed]
    reasons = groups_of(((said_instead(one), name) for ns, name, one in measured if ns is None), lambda pair: pair[0])
    levels += [Level(", ".join(name for _, name in alike), said=said) for said, alike in reasons.items()]
    quotes = {quote.source: quote for _, result in members if result.record for quote in result.record.quotes}
    for source, quote in quotes.items():
        phases = [f"{phase} {format_ns(ns)}" for phase, ns in quote.phases_ns.items()]
        levels.append(Level(f"quoted: {source}", {"median": format_ns(quote.ns)}, phases, ns=quote.ns))
    return levels


def _level(name: str, result: Result, ns: float, base: Result) -> Level:
    record, turns, reading = result.record, turns_with(result, base), judged(result)
    assert record is not None
    cells = {"median": format_ns(ns), "ratio": "1.00" if result is base else told(turns.call)[1:]}
    units = [unit for unit in record.work if not phase_in(unit, own_phases(record))]
    unit = _FLOPS if _FLOPS in record.work else next(iter(units), None)
    if unit is not None:
        cells["rate"] = format_rate(record.work[unit] / (ns / 1e9), "FLOP" if unit == _FLOPS else unit)
    if unit == _FLOPS and record.matmul_flops_per_second is not None:
        cells["matmul"] = _share(record.work[unit], ns, record)
    for column in (named("spread"), named("peak")):
        if column.has(result):
            cells[column.name] = column.text(column.value(result))
    phases = []
    # One phase alone is the whole call.
    for phase, phase_ns in reading.phases_ns.items() if reading is not None and len(reading.phases_ns) > 1 else ():
        text = f"{phase} {format_ns(phase_ns)} {told(turns.phases.get(phase))}".rstrip()
        flops = record.work.get(f"{phase}_{_FLOPS}")
        if flops is not None:
            text += f" {format_rate(flops / (phase_ns / 1e9), 'FLOP')}"
            text += f" {_share(flops, phase_ns, record)}" if record.matmul_flops_per_second is not None else ""
        phases.append(text)
    return Level(name, cells, phases, ns=ns, result=result)


def _share(flops: float, ns: float, record: Record) -> str:
    share = share_of_rate(flops, ns, record)
    return percent(share) if isinstance(share, float) else share or ""
