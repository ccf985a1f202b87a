"""A report as one HTML page with its picture: nothing is loaded from anywhere, and nothing in it runs. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from perflab.report.escaping import one_line
from perflab.snapshots.analysis import categories_of
from perflab.snapshots.model import Snapshot
from perflab.snapshots.picture import color_of, picture
from perflab.snapshots.tables import Report, Table, shown

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --faint: #667085; --line: #d5dae1; --shade: #eef1f5; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171c; --text: #e6e9ee; --faint: #98a2b3; --line: #323a46; --shade: #1d222a; }
}
body { background: var(--back); color: var(--text); font: 14px/1.45 system-ui, sans-serif; max-width: 1140px;
  margin: 24px auto; padding: 0 16px; }
h1 { font-size: 20px; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 28px 0 6px; }
svg { width: 100%; height: auto; display: block; margin-top: 12px; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
svg text.stage, svg text.moment { text-anchor: middle; fill: var(--faint); }
svg text.size { text-anchor: end; fill: var(--faint); } svg text.peak { font-weight: 600; }
svg .grid { stroke: var(--line); } svg .stage0 { fill: var(--shade); } svg .stage1 { fill: none; }
svg .edge { stroke: var(--back); stroke-opacity: 0.55; }
svg line.peak { stroke: var(--text); stroke-dasharray: 3 3; } svg circle.peak { fill: var(--text); }
svg .over { fill: transparent; } svg .over:hover { fill: var(--text); fill-opacity: 0.18; }
.legend span { white-space: nowrap; margin-right: 14px; }
.legend i { display: inline-block; width: 11px; height: 11px; margin-right: 5px; border-radius: 2px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 2px 14px 2px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 500; } .number { text-align: right; white-space: nowrap; }
.note { color: var(--faint); }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser then loads and runs nothing, even if something were written that asks for it."""


def as_page(report: Report, pictured: Sequence[tuple[str, Snapshot]]) -> str:
    """The page.

    Args:
        report: what is said.
        pictured: snapshots whose timelines are drawn, with a title each.
    """
    return "\n".join(_page(report, pictured)) + "\n"


def _text(text: str) -> str:
    return html.escape(one_line(text))


def _page(report: Report, pictured: Sequence[tuple[str, Snapshot]]) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>{_text(report.title)}</title><style>{STYLE}</style></head><body>"
    yield f"<h1>{_text(report.title)}</h1>"
    for title, snapshot in pictured:
        if len(pictured) > 1:
            yield f"<h2>{_text(title)}</h2>"
        yield picture(snapshot)
        names = [
            f'<span><i style="background:{color_of(name)}"></i>{_text(name)}</span>' for name in categories_of(snapshot)
        ]
        yield f'<p class="legend">{" ".join(names)}</p>'
    yield '<table id="facts"><tbody>'
    for fact in report.facts:
        yield f"<tr><th>{_text(fact.title)}</th><td>{_text(shown(fact.value, fact.kind))}</td></tr>"
    yield "</tbody></table>"
    for table in report.tables:
        yield from _table(table)
    yield from (f'<p class="note">{_text(note)}</p>' for note in report.notes)
    yield "</body></html>"


def _table(table: Table) -> Iterator[str]:
    yield f'<h2>{_text(table.title)}</h2><div class="wide"><table id="{_text(table.key)}"><thead><tr>'
    classes = ["" if column.kind == "text" else ' class="number"' for column in table.columns]
    heads = (f"<th{one}>{_text(column.title)}</th>" for column, one in zip(table.columns, classes, strict=True))
    yield "".join(heads) + "</tr></thead><tbody>"
    for row in table.rows:
        cells = (
            f"<td{one}>{_text(shown(value, column.kind))}</td>"
            for value, column, one in zip(row, table.columns, classes, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"
    if table.note:
        yield f'<p class="note">{_text(table.note)}</p>'
