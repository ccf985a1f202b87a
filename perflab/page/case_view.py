"""Makes the section of one case on a report's page: numbers, pictures, sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perflab.page.pictures import Picture, pictures_of
from perflab.page.quantities import page_table, quantity_table
from perflab.page.sentences import sentences_of
from perflab.page.table import TONES, PageTable
from perflab.tables.beside_text import amount
from perflab.tables.contents import CALIBRATION, Case, Quantity, Table
from perflab.tables.lines import said_of
from perflab.units import format_change, format_count

LONGEST_FAILURE = 200
"""The most lines of a failing test's output that are shown."""


@dataclass(frozen=True)
class CaseView:
    """The data of a case for the template."""

    id: str
    case: Case
    verdict: str
    tone: str
    is_open: bool
    brief: str
    """The most important numbers, for the line that is visible while the section is closed."""
    pictures: Sequence[Picture]
    quantities: PageTable | None
    worse: PageTable | None
    """The quantities on which the verdict rests; None if no quantity got worse."""
    tables: Sequence[tuple[Table, PageTable]]
    lists: Sequence[tuple[str, Sequence[str]]] = field(default_factory=list)
    """Lists of sentences with titles: reasons, evidence, quantities that were not compared."""

    @property
    def evidence(self) -> Sequence[Picture]:
        """The picture behind a time that got worse: the pairs if there are any, else the readings.

        Empty: no time got worse.
        """
        judged = [one for name, one in self.case.quantities.items() if one.worse and one.unit == "ns"]
        return self.pictures[: 1 + bool(self.case.paired)][-1:] if judged else []

    @property
    def failure(self) -> str:
        """The failure's text; of a long text only the end, which has the error."""
        lines = (self.case.failure or "").splitlines()
        if len(lines) <= LONGEST_FAILURE:
            return "\n".join(lines)
        left_out = len(lines) - LONGEST_FAILURE
        return "\n".join([f"... ({format_count(left_out, 'line')} before, in the results file)", *lines[left_out:]])


def case_view(case: Case, identity: str, *, is_open: bool = True) -> CaseView:
    """Return the section of one case; ``is_open``: whether the section is open if the verdict is bad."""
    verdict = said_of(case.verdict, saved=case.saved)
    tone = TONES.get(verdict, "")
    shown = {name: one for name, one in case.quantities.items() if not name.startswith(CALIBRATION)}
    worse = {name: one for name, one in case.quantities.items() if one.worse}
    return CaseView(
        id=identity,
        case=case,
        verdict=verdict,
        tone=tone,
        is_open=is_open and tone == "bad",
        brief=_brief(case),
        pictures=pictures_of(case),
        quantities=quantity_table(shown) if shown else None,
        worse=quantity_table(worse) if worse else None,
        tables=[(table, page_table(table)) for table in case.tables],
        lists=[(title, lines) for title, lines in sentences_of(case).items() if lines],
    )


def _brief(case: Case) -> str:
    shown = []
    for name in ("latency", "bound", "peak", "registers"):
        one = case.quantities.get(name)
        if one is not None:
            least = "at least " if name == "bound" else ""
            unit = " registers" if name == "registers" else ""
            shown.append(f"{least}{amount(one.now, one.unit)}{unit}{_changed(one)}")
    return " · ".join(shown)


def _changed(one: Quantity) -> str:
    return f" {format_change(one.ratio)}" if one.ratio is not None and one.ratio != 1.0 else ""
