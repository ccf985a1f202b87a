"""Writes a history as CSV, with a row for each point. Pure."""

from __future__ import annotations

import csv
import io
import re

from perflab.history.contents import Contents
from perflab.tables.escaping import one_line

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
COLUMNS = ("case", "variant", "quantity", "unit", "environment", "created", "commit", "value", "said", "level", "file")


def as_csv(contents: Contents) -> str:
    """Return CSV with a row for each point, which includes the level that the point belongs to.

    Texts that a spreadsheet would compute begin with a quote. Control characters are escaped, since a terminal may show
    the text.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in contents.series:
        ends = iter(row.levels)
        level = next(ends)
        for point, (run, value, word) in enumerate(zip(row.runs, row.values, row.words, strict=True)):
            if point > level.last:
                level = next(ends)
            one = contents.runs[run]
            cells = [row.case, row.variant, row.quantity, row.unit, contents.environments[row.environment]]
            cells += [one.created, one.commit or "", f"{value:.17g}", contents.words[word]]
            writer.writerow([_plain(cell) for cell in [*cells, f"{level.value:.17g}", one.file]])
    return text.getvalue().encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(cell: str) -> str:
    return "'" * (cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell)) + one_line(cell)
